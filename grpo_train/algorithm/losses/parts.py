"""Parts of the losses: importance ratios, surrogates per token, and token weights in the step's loss.

Shapes: logps, old_logps and mask (B, T), advantage (B, 1); a sequence-level ratio is (B, 1). A loss is

    loss = sum_it weight_it * surrogate_it,

with the weights of the whole optimizer step. The losses of its micro-batches on all ranks therefore sum to the loss of
the step, however it is split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch


@dataclass(frozen=True)
class Clip:
    """Bounds of the importance ratio."""

    low: float
    """epsilon."""
    high: float
    """epsilon_high."""
    delta: float | None = None
    """Upper bound of the unclipped ratio where the advantage is negative (two-sided clipping); None = unbounded."""


@dataclass(frozen=True)
class Counts:
    """Counts that normalize a step, over all its micro-batches and ranks."""

    completions: int
    tokens: float
    """Unmasked completion tokens."""
    max_completion_length: int | None = None
    """The generation budget."""


@dataclass(frozen=True)
class Surrogate:
    """A surrogate's value per token, and the tokens it clipped."""

    value: torch.Tensor
    """(B, T), or (B, 1) for a sequence-level ratio."""
    clipped_low: torch.Tensor
    """Bool, shaped like the ratio: below the range with a negative advantage."""
    clipped_high: torch.Tensor
    """Bool, shaped like the ratio: above the range with a positive advantage."""


Ratio = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
SurrogateFunction = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Clip], Surrogate]
Weight = Callable[[torch.Tensor, Counts], torch.Tensor]


@dataclass(frozen=True)
class LossSpec:
    """One estimator: its ratio, surrogate and normalizer."""

    ratio: Ratio
    """(logps, old_logps, mask) -> importance ratio."""
    surrogate: SurrogateFunction
    """(ratio, advantage, logps, clip) -> surrogate."""
    weight: Weight
    """(mask, counts) -> weight of each token: (B, T), (B, 1) or scalar."""
    counts_tokens: bool = False
    """Whether the normalizer is the step's number of tokens."""
    bounds: Literal["range", "ratio", "probability", "nothing"] = "range"
    """What epsilon and epsilon_high bound: the ratio to [1 - low, 1 + high]; ``ratio``: high is its maximum;
    ``probability``: the change of a token's probability. Only a range takes delta."""


# ------------------------------------------------------------------------------------------------------------ ratios

MAX_LOG_RATIO = 80.0
"""Upper bound, where exp is finite in float32: 0 * inf would make the gradient of a clipped token NaN."""


def token_ratio(logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """rho_it = exp(logps - old_logps), (B, T); 1 outside the mask."""
    return torch.exp(((logps - old_logps) * mask).clamp(max=MAX_LOG_RATIO))


def sequence_ratio(logps: torch.Tensor, old_logps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """s_i = exp(mean over the completion's tokens of logps - old_logps), (B, 1)."""
    difference = (logps - old_logps) * mask
    mean = difference.sum(dim=1, keepdim=True) / mask.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.exp(mean.clamp(max=MAX_LOG_RATIO))


# -------------------------------------------------------------------------------------------------------- surrogates


def clipped_surrogate(ratio: torch.Tensor, advantage: torch.Tensor, logps: torch.Tensor, clip: Clip) -> Surrogate:
    """-min(rho A, clip(rho, 1 - low, 1 + high) A), with rho at most delta in the first term where delta is set.

    PPO's clipped surrogate (Schulman et al. 2017, arXiv 1707.06347, eq. 7). delta is INTELLECT-2's two-sided clip
    (arXiv 2505.07291, §4.2): without it the loss of a token with A < 0 and a huge ratio is unbounded.
    """
    bounded = ratio if clip.delta is None else ratio.clamp(max=clip.delta)
    value = -torch.minimum(bounded * advantage, ratio.clamp(1 - clip.low, 1 + clip.high) * advantage)
    return Surrogate(value, (ratio < 1 - clip.low) & (advantage < 0), (ratio > 1 + clip.high) & (advantage > 0))


def reinforce_surrogate(ratio: torch.Tensor, advantage: torch.Tensor, logps: torch.Tensor, clip: Clip) -> Surrogate:
    """-sg(min(rho, high)) A logp (sg = stop gradient): the weight is bounded, every token keeps its gradient."""
    value = -ratio.clamp(max=clip.high).detach() * advantage * logps
    return Surrogate(value, torch.zeros_like(ratio, dtype=torch.bool), (ratio > clip.high) & (advantage > 0))


# ----------------------------------------------------------------------------------------------------------- weights


def per_budget(mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """1 / (N L): completions of the step times the generation budget."""
    if not counts.max_completion_length:
        raise ValueError("this loss divides by the generation budget; pass max_completion_length")
    return mask.new_full((), 1 / (counts.completions * counts.max_completion_length))


def per_token(mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """1 / (completion tokens of the step): equal weight per token."""
    return mask.new_full((), 1 / max(counts.tokens, 1))


def per_completion(mask: torch.Tensor, counts: Counts) -> torch.Tensor:
    """1 / (N |o_i|), (B, 1): equal weight per completion, shared by its tokens."""
    return 1 / (counts.completions * mask.sum(dim=1, keepdim=True).clamp(min=1))
