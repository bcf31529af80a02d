"""Drawing the next token, the same in every backend: a completion depends on its own random numbers only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch.nn.functional import pad
from transformers import TopKLogitsWarper, TopPLogitsWarper
from transformers.generation.stopping_criteria import StopStringCriteria

from grpo_train.policy.tokenizer import eos_ids
from grpo_train.rewards.tags import in_thoughts
from grpo_train.rollout.prompts import end_of

BLOCK = 128
"""Tokens of a block of the vocabulary: it divides the vocabularies of Qwen2.5, Qwen3, Llama 3 and SmolLM2."""
SMALL_VOCABULARY = 4096
"""Up to here one cumulative sum is faster than two levels of them."""
NO_TOKEN = 2**31 - 1
"""Placeholder before the first token of a completion; not part of any stop string."""


BlockSums: TypeAlias = Callable[[torch.Tensor, float], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Draw:
    """How the next token is chosen. A checkpoint's generation_config is ignored."""

    temperature: float
    """0 = the likeliest token, the first of equals."""
    top_p: float = 1.0
    top_k: int = 0
    sums: BlockSums | None = None
    """A compiled :func:`block_sums`; None = as it is."""

    @property
    def is_random(self) -> bool:
        return self.temperature > 0

    def __call__(
        self, logits_BV: torch.Tensor, uniform_B: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The next token of each row, and its log-probability (float32) under the sampling distribution.

        Without ``uniform_B`` the token is the likeliest one, without log-probability; otherwise it is drawn by
        inverting the cumulative distribution at ``uniform_B``.
        """
        if uniform_B is None:
            return logits_BV.argmax(dim=-1), None
        temperature = self.temperature
        if self.top_k or self.top_p < 1:
            logits_BV, temperature = logits_BV.float() / temperature, 1.0
        if self.top_k:
            logits_BV = TopKLogitsWarper(self.top_k)(None, logits_BV)
        if self.top_p < 1:
            logits_BV = TopPLogitsWarper(self.top_p)(None, logits_BV)
        if logits_BV.shape[-1] > SMALL_VOCABULARY:
            return _draw_by_blocks(logits_BV, temperature, uniform_B.unsqueeze(1), self.sums or block_sums)
        scores_BV = logits_BV.float() / temperature
        logp_BV = scores_BV.log_softmax(dim=-1)
        token_B1 = invert(logp_BV.exp(), uniform_B.unsqueeze(1))
        return token_B1.squeeze(1), logp_BV.gather(1, token_B1).squeeze(1)


def invert(probs_BV: torch.Tensor, uniform_B1: torch.Tensor) -> torch.Tensor:
    """The tokens (B, 1) whose share of the cumulative distribution, in float64, contains ``uniform_B1``. Tokens of
    probability 0 are never drawn."""
    return _search(_cumulative(probs_BV), uniform_B1, is_share=True)


def block_sums(logits_BV: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The largest logits / temperature of each block of :data:`BLOCK` tokens, (B, K), and the sum of
    exp(logits / temperature - largest) in float64, (B, K); in one pass over the logits where it is compiled."""
    scores_BV = logits_BV.float() / temperature
    if missing := -scores_BV.shape[-1] % BLOCK:
        scores_BV = pad(scores_BV, (0, missing), value=-torch.inf)
    blocks_BKN = scores_BV.unflatten(1, (-1, BLOCK))
    most_BK = blocks_BKN.amax(dim=-1)
    # Where no token is possible, exp(-inf - -inf) would be NaN.
    most_BK = torch.where(most_BK == -torch.inf, 0.0, most_BK)
    return most_BK, (blocks_BKN - most_BK.unsqueeze(-1)).exp().sum(dim=-1, dtype=torch.float64)


def _draw_by_blocks(
    logits_BV: torch.Tensor, temperature: float, uniform_B1: torch.Tensor, sums: BlockSums
) -> tuple[torch.Tensor, torch.Tensor]:
    """A large vocabulary is searched block by block, so that neither all probabilities nor a (B, V) in float64 is made:
    first the sums of the blocks, then one block of each row."""
    most_BK, sum_BK = sums(logits_BV, temperature)
    most_B1 = most_BK.amax(dim=-1, keepdim=True)
    ends_BK = _cumulative(sum_BK * (most_BK - most_B1).double().exp())
    total_B1 = ends_BK[:, -1:]
    block_B1 = _search(ends_BK, uniform_B1, is_share=True)
    before_B1 = pad(ends_BK, (1, 0)).gather(1, block_B1)
    at_BN = block_B1 * BLOCK + torch.arange(BLOCK, device=logits_BV.device)
    last = logits_BV.shape[-1] - 1
    inside_BN = logits_BV.gather(1, at_BN.clamp(max=last)).float() / temperature
    inside_BN = inside_BN.masked_fill(at_BN > last, -torch.inf)
    target_B1 = uniform_B1 * total_B1 - before_B1
    within_B1 = _search(_cumulative((inside_BN - most_B1).exp()), target_B1, is_share=False)
    logp_B1 = (inside_BN.gather(1, within_B1) - most_B1).double() - total_B1.log()
    return (block_B1 * BLOCK + within_B1).squeeze(1), logp_B1.squeeze(1).float()


def _cumulative(values_BN: torch.Tensor) -> torch.Tensor:
    """Cumulative sums in float64: by a product where only kernels that repeat may run, as CUDA's cumsum does not."""
    if _may_vary(values_BN):
        return values_BN.cumsum(dim=-1, dtype=torch.float64)
    count_N = values_BN.shape[-1]
    return values_BN.double() @ torch.ones((count_N, count_N), dtype=torch.float64, device=values_BN.device).triu()


def _may_vary(values: torch.Tensor) -> bool:
    return not (values.is_cuda and torch.are_deterministic_algorithms_enabled())


def _search(cumulative_BN: torch.Tensor, target_B1: torch.Tensor, *, is_share: bool) -> torch.Tensor:
    """The first position (B, 1) whose cumulative sum exceeds the target, which may be a share of the total."""
    total_B1 = cumulative_BN[:, -1:]
    target_B1 = target_B1 * total_B1 if is_share else target_B1
    below_B1 = torch.minimum(target_B1, torch.nextafter(total_B1, torch.zeros_like(total_B1)))
    # NaN, which the caller reports, is found beyond the end.
    return torch.searchsorted(cumulative_BN, below_B1, right=True).clamp(max=cumulative_BN.shape[-1] - 1)


def uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """Uniform random numbers in [0, 1), (B, count) float64: row b depends only on seed b."""
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    return torch.stack([torch.rand(count, dtype=torch.float64, generator=generator) for generator in generators])


class Ends:
    """What ends a completion: tokens of the tokenizer and the model, and stop strings."""

    def __init__(self, model: object, tokenizer: object, stop: Sequence[str]) -> None:
        """``stop``: strings that end a completion, which includes them."""
        self.tokens = eos_ids(getattr(model, "generation_config", None), tokenizer)
        # Created once: it scans the whole vocabulary.
        self._tokenizer: Any = tokenizer
        self._stop = StopStringCriteria(tokenizer, list(stop)) if stop else None  # type: ignore[arg-type]
        self.recent = int(self._stop.maximum_token_len) if self._stop else 0
        """Tokens at the end of a completion that decide whether it ends with a stop string."""

    def __call__(self, token_B: torch.Tensor, recent_BR: torch.Tensor) -> torch.Tensor:
        """(B,) bool: whether a completion ends with ``token_B``, the last of its ``recent`` tokens."""
        ended_B = torch.isin(token_B, torch.tensor(self.tokens, dtype=torch.long, device=token_B.device))
        return ended_B if self._stop is None else ended_B | self._stop(recent_BR, None)

    def counts(self, prompt: Sequence[int], ids: Sequence[int]) -> bool:
        """Whether the end that was found after the tokens ``ids`` counts: a stop string only after the thoughts."""
        if ids[-1] in self.tokens:
            return True
        completion = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return not in_thoughts(end_of(prompt, self._tokenizer), completion)
