"""Decoding for evaluations: every sample draws from random numbers of its own, and what is finished leaves the batch.

So a sample does not depend on what is generated beside it, before it or after it (up to the rounding of the model's own
arithmetic, which depends on the shape of a batch), and uneven lengths do not make short answers wait for long ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import DynamicCache, TopPLogitsWarper
from transformers.generation.stopping_criteria import StopStringCriteria


@dataclass(frozen=True)
class Decoded:
    """One completion."""

    ids: tuple[int, ...]
    """Tokens, the end-of-sequence token included when it was drawn."""
    finished: bool
    """False when the generation budget cut it off."""


class Decoder:
    """A causal language model (with or without a peft adapter) and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        """``stop``: strings at which a completion ends; they stay in it."""
        self._model = model
        # Made once: it looks at every token of the vocabulary.
        self._stop = StopStringCriteria(tokenizer, list(stop)) if stop else None
        self._eos_id = int(tokenizer.eos_token_id)
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._config = inner.config
        self._takes = set(inspect.signature(inner.forward).parameters)

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
    ) -> list[Decoded]:
        """One completion of each prompt, all at once.

        Args:
            prompts: token ids; at least one token each.
            seeds: each completion's own; 0 ≤ seed < 2^63. Without effect at temperature 0.
            max_completion_length: tokens.
            temperature: 0 = greedy, the first of equals.

        Raises torch.OutOfMemoryError (CUDA), RuntimeError (CPU) where the batch does not fit.
        """
        budget, device = max_completion_length, self._model.device
        input_BL, mask_BL = _left_padded(prompts, budget, self._eos_id, device)
        width = input_BL.shape[1]
        position_BL = (mask_BL[:, :width].cumsum(1) - 1).clamp(min=0)
        uniform_BT = _uniforms(seeds, budget).to(device) if temperature > 0 else None
        drawn_BT = torch.empty((len(prompts), budget), dtype=torch.long, device=device)
        cache = DynamicCache(config=self._config)
        rows = torch.arange(len(prompts), device=device)
        lengths, finished = [budget] * len(prompts), [False] * len(prompts)
        for t in range(budget):
            logits_BV = self._forward(input_BL, mask_BL[:, : width + t], position_BL, cache)
            uniform_B = uniform_BT[rows, t] if uniform_BT is not None else None
            token_B = _pick(logits_BV, uniform_B, temperature, top_p)
            drawn_BT[rows, t] = token_B
            ended_B = token_B == self._eos_id
            if self._stop is not None:
                ended_B |= self._stop(drawn_BT[rows, : t + 1], None)
            ended = ended_B.tolist()
            position_B1 = position_BL[:, -1:] + 1
            if any(ended):
                for row, end in zip(rows.tolist(), ended, strict=True):
                    if end:
                        lengths[row], finished[row] = t + 1, True
                going_on = (~ended_B).nonzero().squeeze(1)
                if not len(going_on):
                    break
                cache.batch_select_indices(going_on)
                rows, token_B = rows[going_on], token_B[going_on]
                mask_BL, position_B1 = mask_BL[going_on], position_B1[going_on]
            input_BL, position_BL = token_B.unsqueeze(1), position_B1
        drawn = drawn_BT.tolist()
        return [Decoded(tuple(ids[:length]), end) for ids, length, end in zip(drawn, lengths, finished, strict=True)]

    def _forward(
        self, input_BL: torch.Tensor, mask_BL: torch.Tensor, position_BL: torch.Tensor, cache: Any
    ) -> torch.Tensor:
        """The logits of the last position (B, V)."""
        inputs = {
            "input_ids": input_BL,
            "attention_mask": mask_BL,
            "position_ids": position_BL,
            "past_key_values": cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        logits: torch.Tensor = self._model(**{k: v for k, v in inputs.items() if k in self._takes}).logits[:, -1]
        return logits


def _left_padded(
    prompts: Sequence[Sequence[int]], budget: int, pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts (B, L) that end together, and the mask (B, L + budget) of what is there once they are continued."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask = torch.zeros((len(prompts), width + budget), dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """(B, count) numbers in [0, 1): row b is a function of seed b alone."""
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    return torch.stack([torch.rand(count, dtype=torch.float64, generator=generator) for generator in generators])


def _pick(logits_BV: torch.Tensor, uniform_B: torch.Tensor | None, temperature: float, top_p: float) -> torch.Tensor:
    """The next token of each row: the likeliest, or the one at ``uniform`` of the cumulated distribution."""
    if uniform_B is None:
        return logits_BV.argmax(dim=-1)
    scores_BV = logits_BV.float() / temperature
    if top_p < 1:
        scores_BV = TopPLogitsWarper(top_p)(None, scores_BV)
    cumulated_BV = scores_BV.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    # Strictly above: a token of probability 0 is never the first to exceed anything.
    at_B1 = uniform_B.unsqueeze(1) * cumulated_BV[:, -1:]
    return torch.searchsorted(cumulated_BV, at_B1, right=True).squeeze(1).clamp(max=logits_BV.shape[-1] - 1)
