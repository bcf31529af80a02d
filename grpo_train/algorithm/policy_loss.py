"""The clipped policy-gradient loss of Dr. GRPO."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class PolicyLoss:
    """A loss and what explains it."""

    loss: torch.Tensor
    """Scalar, to call ``backward`` on."""
    per_token: torch.Tensor
    """(B, T), 0 outside the mask."""
    clipped_low: torch.Tensor
    """Scalar count of tokens whose ratio was clipped from below (advantage < 0)."""
    clipped_high: torch.Tensor
    """Scalar count of tokens whose ratio was clipped from above (advantage > 0)."""


def policy_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    epsilon: float,
    epsilon_high: float | None = None,
    max_completion_length: int,
    num_completions: int | None = None,
) -> PolicyLoss:
    """Dr. GRPO: sum over tokens of -min(rho A, clip(rho, 1-eps, 1+eps_high) A), divided by N x L.

    N is the number of completions of the whole optimizer step and L the generation budget, so that the gradient of a
    step is the plain sum of its micro-batches' and ranks' gradients, however they were split (reference:
    sail-sg/understand-r1-zero, ``masked_sum`` with ``constant_normalizer=generate_max_length``).

    Args:
        logps: (B, T) log-probabilities of the policy, with gradient.
        old_logps: (B, T) of the policy that the ratio rho = exp(logps - old_logps) is taken to.
        advantages: (B,).
        mask: (B, T), 1 on completion tokens.
        epsilon, epsilon_high: clip range; ``epsilon_high`` defaults to ``epsilon``.
        max_completion_length: L, tokens.
        num_completions: N; defaults to B (the batch is the whole step).
    """
    high = epsilon if epsilon_high is None else epsilon_high
    mask = mask.to(logps.dtype)
    advantage = advantages.unsqueeze(1)
    ratio = torch.exp((logps - old_logps) * mask)
    clipped = ratio.clamp(1 - epsilon, 1 + high)
    per_token = -torch.minimum(ratio * advantage, clipped * advantage) * mask
    loss = per_token.sum() / ((num_completions or logps.shape[0]) * max_completion_length)
    with torch.no_grad():
        low_count = ((ratio < 1 - epsilon) & (advantage < 0)).to(logps.dtype).mul(mask).sum()
        high_count = ((ratio > 1 + high) & (advantage > 0)).to(logps.dtype).mul(mask).sum()
    return PolicyLoss(loss, per_token, low_count, high_count)
