"""Weights that correct for samples which another policy drew than the one whose gradient is taken.

The sampler (another kernel, another precision, truncated support, stale weights) gave a token the probability q, the
trainer's policy before the update gives it p. Importance weights w = p / q make the gradient that of p, and bounding
them keeps the variance finite.

Yao et al. 2025 ("Your efficient RL framework secretly brings you off-policy RL training"): truncated importance
sampling; the names are TRL's ``vllm_importance_sampling_mode``.
"""

from __future__ import annotations

import torch

MODES = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def rollout_correction(
    old_logps: torch.Tensor, rollout_logps: torch.Tensor, mask: torch.Tensor, *, mode: str, cap: float
) -> torch.Tensor | None:
    """Importance weights of tokens or sequences, without gradient.

    Args:
        old_logps: (B, T), the trainer's, of the policy that the samples are attributed to.
        rollout_logps: (B, T), as sampled.
        mask: (B, T), 1 on completion tokens; elsewhere a token's weight is that of the ratio 1.
        mode: ``token_truncate``: min(p/q, cap) per token; ``token_mask``: tokens with p/q > cap are rejected (weight
            0); ``sequence_truncate``, ``sequence_mask``: the same with the product of p/q over the completion.
        cap: upper bound of the ratio.

    Returns:
        (B, T), (B, 1) for the sequence modes, None for ``none``.

    Raises:
        ValueError: an unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"unknown rollout correction '{mode}': it is one of {', '.join(MODES)}")
    if mode == "none":
        return None
    with torch.no_grad():
        difference = (old_logps - rollout_logps).masked_fill(~mask.bool(), 0.0)
        if mode.startswith("sequence"):
            difference = difference.sum(dim=1, keepdim=True)
        ratio = difference.exp()
        return ratio.clamp(max=cap) if mode.endswith("truncate") else ratio.masked_fill(ratio > cap, 0.0)
