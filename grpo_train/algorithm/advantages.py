"""Group-relative advantages and combined rewards. NaN means "does not apply"."""

from __future__ import annotations

from collections.abc import Mapping

import torch

STD_EPSILON = 1e-4
"""Added to a standard deviation before dividing (TRL's value)."""


def combine_rewards(rewards: Mapping[str, torch.Tensor], weights: Mapping[str, float] | None = None) -> torch.Tensor:
    """Weighted sum of several reward functions.

    Args:
        rewards: (B,) by function name; NaN where a function does not apply to a completion.
        weights: by function name; 1 for functions not named.

    Returns:
        (B,) float64; NaN where no function applies.
    """
    stacked = torch.stack([values.double() for values in rewards.values()])
    scale = torch.tensor([(weights or {}).get(name, 1.0) for name in rewards], dtype=torch.float64)
    total = (stacked * scale.unsqueeze(1)).nansum(dim=0)
    return total.masked_fill(stacked.isnan().all(dim=0), torch.nan)


def group_advantages(rewards: torch.Tensor, num_generations: int, scale_rewards: str = "none") -> torch.Tensor:
    """Each reward minus the mean of its prompt group, optionally divided by a standard deviation.

    Dr. GRPO (Liu et al. 2025, arXiv 2503.20783, §3.2) drops GRPO's division by the group's standard deviation, which
    weights questions by difficulty. ``group`` is GRPO as published (Shao et al. 2024, arXiv 2402.03300, §4.1.2).
    ``batch`` divides by the standard deviation of all rewards (Lite PPO, arXiv 2508.08221). Standard deviations are
    sample estimates (ddof 1) plus 1e-4, as in TRL. ``mean`` divides by the group's mean (MaxRL, Tajwar et al. 2026,
    arXiv 2602.02710), which weights a question by 1 / pass rate, as maximum likelihood does; it is for rewards that
    are not negative, and a group whose mean is not above 0 has advantage 0.

    Args:
        rewards: (B,), consecutive groups of ``num_generations``; with ``batch``, all completions of a step from every
            rank. A NaN reward is left out of its group and gets advantage 0.
        num_generations: completions per prompt.
        scale_rewards: none, group, batch or mean.

    Returns:
        (B,) in the dtype of ``rewards`` (integers become floats). Each group sums to 0; equal rewards give exactly 0.

    Raises:
        ValueError: B is not a multiple of ``num_generations``, or ``scale_rewards`` is unknown.
    """
    if rewards.numel() % num_generations:
        raise ValueError(f"{rewards.numel()} rewards do not divide into groups of {num_generations}")
    if scale_rewards not in ("none", "group", "batch", "mean"):
        raise ValueError(f"unknown scale_rewards '{scale_rewards}'; known: none, group, batch, mean")
    if not rewards.is_floating_point():
        rewards = rewards.to(torch.get_default_dtype())
    groups = rewards.reshape(-1, num_generations)
    mean = groups.nanmean(dim=1, keepdim=True)
    centered = groups - mean
    # The mean of equal rewards may be rounded; their advantage is exactly 0.
    lowest = groups.nan_to_num(nan=torch.inf).amin(dim=1, keepdim=True)
    highest = groups.nan_to_num(nan=-torch.inf).amax(dim=1, keepdim=True)
    centered = centered.masked_fill(lowest >= highest, 0.0)
    if scale_rewards == "group":
        centered = centered / (_nanstd(groups) + STD_EPSILON)
    elif scale_rewards == "batch":
        centered = centered / (_nanstd(groups.view(1, -1)) + STD_EPSILON)
    elif scale_rewards == "mean":
        centered = torch.where(mean > 0, centered / mean, 0.0)
    return centered.nan_to_num(nan=0.0).view(-1)


def overlong_penalty(lengths: torch.Tensor, max_completion_length: int, buffer: int) -> torch.Tensor:
    """DAPO's soft overlong punishment: 0 up to L - buffer tokens, falling linearly to -1 at L.

    Yu et al. 2025, arXiv 2503.14476, eq. 13. ``lengths``: (B,) tokens; ``buffer``: 1 or more; returns (B,) float64.
    """
    return (((max_completion_length - buffer) - lengths.double()) / buffer).clamp(-1, 0)


def _nanstd(values: torch.Tensor) -> torch.Tensor:
    """(..., 1) sample standard deviation of the last dimension, ignoring NaN; 0 for fewer than two values."""
    known = ~values.isnan()
    count = known.sum(dim=-1, keepdim=True)
    centered = (values - values.nanmean(dim=-1, keepdim=True)).masked_fill(~known, 0.0)
    return (centered.square().sum(dim=-1, keepdim=True) / (count - 1).clamp(min=1)).sqrt()
