"""Importance weights for samples drawn by another policy than the trained one.

The sampler (another kernel, another precision, truncated support, stale weights) gave a token probability q; the
trainer's policy before the update gives it p. Weights w = p / q make the gradient unbiased for p, and bounding them
keeps the variance finite.

Yao et al. 2025 ("Your efficient RL framework secretly brings you off-policy RL training"): truncated importance
sampling. The mode names are those of TRL's ``vllm_importance_sampling_mode``.
"""

from __future__ import annotations

import torch

MODES = ("none", "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def rollout_correction(
    old_logps: torch.Tensor, rollout_logps: torch.Tensor, mask: torch.Tensor, *, mode: str, cap: float
) -> torch.Tensor | None:
    """Importance weights per token or sequence, without gradient.

    Args:
        old_logps: (B, T), by the trainer's policy before the update.
        rollout_logps: (B, T), as sampled.
        mask: (B, T), 1 on completion tokens; elsewhere the ratio is 1.
        mode: ``token_truncate``: min(p/q, cap) per token; ``token_mask``: weight 0 for tokens with p/q > cap;
            ``sequence_truncate``, ``sequence_mask``: the same with the product of p/q over the completion.
        cap: upper bound of the ratio.

    Returns:
        (B, T), (B, 1) for the sequence modes, None for ``none``.

    Raises:
        ValueError: unknown mode.
    """
    if mode not in MODES:
        raise ValueError(f"unknown rollout correction '{mode}'; known: {', '.join(MODES)}")
    if mode == "none":
        return None
    with torch.no_grad():
        difference = (old_logps - rollout_logps).masked_fill(~mask.bool(), 0.0)
        if mode.startswith("sequence"):
            difference = difference.sum(dim=1, keepdim=True)
        ratio = difference.exp()
        return ratio.clamp(max=cap) if mode.endswith("truncate") else ratio.masked_fill(ratio > cap, 0.0)
