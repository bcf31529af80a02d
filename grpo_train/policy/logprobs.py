"""Log-probabilities of given completions under the policy.

Shape suffixes: B completions, P padded prompt length, T padded completion length, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from grpo_train.rollout import Completion


@dataclass(frozen=True)
class PaddedBatch:
    """Completions side by side: prompts padded on the left, completions on the right."""

    input_ids: torch.Tensor
    """(B, P + T) int64."""
    attention_mask: torch.Tensor
    """(B, P + T), 1 on tokens."""
    completion_mask: torch.Tensor
    """(B, T), 1 on completion tokens."""
    rollout_logps: torch.Tensor
    """(B, T) float32, as sampled; 0 on padding."""

    @property
    def completion_length(self) -> int:
        return int(self.completion_mask.shape[1])


def pad_batch(completions: Sequence[Completion], pad_id: int, device: torch.device) -> PaddedBatch:
    """Pad completions to the longest prompt and the longest completion among them."""
    width_P = max(len(c.prompt_ids) for c in completions)
    width_T = max(1, *(len(c.ids) for c in completions))
    batch = len(completions)
    input_ids = torch.full((batch, width_P + width_T), pad_id, dtype=torch.long)
    attention_mask = torch.zeros((batch, width_P + width_T), dtype=torch.long)
    logps = torch.zeros((batch, width_T), dtype=torch.float32)
    for row, completion in enumerate(completions):
        start, end = width_P - len(completion.prompt_ids), width_P + len(completion.ids)
        input_ids[row, start:end] = torch.tensor([*completion.prompt_ids, *completion.ids], dtype=torch.long)
        attention_mask[row, start:end] = 1
        logps[row, : len(completion.ids)] = torch.tensor(completion.logps, dtype=torch.float32)
    return PaddedBatch(
        input_ids.to(device),
        attention_mask.to(device),
        attention_mask[:, width_P:].to(device),
        logps.to(device),
    )


def completion_logprobs(model: Any, batch: PaddedBatch, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the completion tokens, and the entropy of the distributions they were drawn from.

    Float32 whatever the model's dtype; the temperature is applied, as it was in sampling. Logits are made for the
    completion's positions only.

    Returns:
        logps (B, T) with gradient, entropy (B, T) without; 0 outside the mask.
    """
    length_T = batch.completion_length
    position_ids = (batch.attention_mask.cumsum(dim=1) - 1).clamp(min=0)
    output = model(
        input_ids=batch.input_ids,
        attention_mask=batch.attention_mask,
        position_ids=position_ids,
        use_cache=False,
        logits_to_keep=length_T + 1,
    )
    logits_BTV = output.logits[:, :-1].float() / temperature
    all_logps_BTV = torch.log_softmax(logits_BTV, dim=-1)
    targets_BT = batch.input_ids[:, -length_T:]
    logps = all_logps_BTV.gather(-1, targets_BT.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        entropy = -(all_logps_BTV.exp() * all_logps_BTV).sum(dim=-1)
    return logps * batch.completion_mask, entropy * batch.completion_mask
