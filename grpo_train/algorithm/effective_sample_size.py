"""Effective sample size of importance-weighted samples."""

from __future__ import annotations

import math

import torch


def effective_sample_size(log_weights: torch.Tensor, clip: tuple[float, float] | None = None) -> torch.Tensor:
    """Effective sample size as a share of the samples: ESS / N = (sum w)^2 / (N sum w^2), w = exp(log_weights).

    1 when all weights are equal, 1/N when one dominates (Kish 1965, "Survey Sampling"). verl logs it over tokens, with
    clipped weights. VCPO (arXiv 2602.17616, ``recipe/fully_async_policy/staleness_utils.py``) uses sequences, raw and
    clipped, and finds that it predicts collapse. Below 0.5 is a warning, below 0.3 an alarm (verl's docs).

    A mean over ranks is not the step's value: gather the log weights of all ranks first.

    Args:
        log_weights: any shape, log-probability ratios of tokens (without padding) or of sequences (sums over tokens, or
            GSPO's means). -inf is a weight of 0 and counts in N.
        clip: (low, high); weights are clamped to it first. low may be 0, high may be infinite.

    Returns:
        Scalar float64 in [1/N, 1], without gradient. NaN where undefined: no weights, all weights 0, or a log weight
        that is NaN or +inf (with ``clip``, too).

    Raises:
        ValueError: ``clip`` is not 0 <= low <= high with high > 0.
    """
    logs = log_weights.detach().double().flatten()
    if clip is not None:
        low, high = clip
        if not (0 <= low <= high and high > 0):
            raise ValueError(f"clip is ({low}, {high}); required: 0 <= low <= high and high > 0")
        clamped = logs.clamp(math.log(low) if low > 0 else -math.inf, math.log(high))
        logs = torch.where(logs == math.inf, math.nan, clamped)
    if logs.numel() == 0:
        return logs.new_tensor(math.nan)
    # The ratio is scale-invariant. With the largest weight at 1 nothing overflows, and equal weights give exactly 1.
    # Same as exp(2 logsumexp(lw) - logsumexp(2 lw)) / N.
    weights = torch.exp(logs - logs.max())
    ratio = weights.sum().square() / (weights.square().sum() * logs.numel())
    return ratio.clamp(max=1.0)
