"""Policy loss of a batch of completions, for every estimator in :mod:`grpo_train.algorithm.losses`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpo_train.algorithm.losses import LOSS_TYPES, LossSpec
from grpo_train.algorithm.losses.parts import Clip, Counts


@dataclass(frozen=True)
class PolicyLoss:
    """A loss and its diagnostics."""

    loss: torch.Tensor
    """Scalar with gradient."""
    per_token: torch.Tensor
    """(B, T) before normalization, with the KL term; 0 outside the mask."""
    clipped_low: torch.Tensor
    """(B, T) bool: tokens with a ratio below the clip range and a negative advantage."""
    clipped_high: torch.Tensor
    """(B, T) bool: tokens with a ratio above the clip range and a positive advantage."""
    kl_per_token: torch.Tensor | None
    """(B, T) k3 estimate of KL(policy || reference), detached; None without a reference."""
    mask: torch.Tensor
    """(B, T) mask of the loss, in its dtype."""


def policy_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    loss_type: str | LossSpec,
    epsilon: float,
    epsilon_high: float | None = None,
    delta: float | None = None,
    max_completion_length: int | None = None,
    num_completions: int | None = None,
    num_tokens: float | None = None,
    world_size: int = 1,
    beta: float = 0.0,
    ref_logps: torch.Tensor | None = None,
    importance_weights: torch.Tensor | None = None,
    entropy: torch.Tensor | None = None,
    entropy_coef: float = 0.0,
) -> PolicyLoss:
    """Policy loss of one micro-batch, normalized for the whole optimizer step.

    The losses (or gradients) of all micro-batches and ranks of a step sum to the step's. ``world_size`` W scales the
    loss by W, for a data-parallel *mean* over ranks.

    Args:
        logps: (B, T) log-probabilities of the policy, with gradient.
        old_logps: (B, T) denominator of the ratio rho = exp(logps - old_logps); a constant.
        advantages: (B,).
        mask: (B, T), 1 on the completion tokens that count. Values elsewhere are ignored, even NaN.
        loss_type: a name of :data:`grpo_train.algorithm.losses.LOSS_TYPES`, or a loss of its own.
        epsilon, epsilon_high: clip range [1 - epsilon, 1 + epsilon_high]; ``epsilon_high`` defaults to ``epsilon``.
            For cispo ``epsilon_high`` is the bound of the ratio and required; for dppo both bound a probability.
        delta: bound of the ratio where the advantage is negative (two-sided clipping); above 1 + epsilon_high.
        max_completion_length: L, the generation budget in tokens (dr_grpo).
        num_completions: N, completions of the whole step; default: B, the batch is the whole step.
        num_tokens: unmasked completion tokens of the whole step; default: those of ``mask``, where the batch is the
            whole step.
        world_size: ranks that the caller averages over (1 where gradients are summed).
        beta, ref_logps: adds beta * k3 to each token's loss, k3 = exp(ref - logp) - (ref - logp) - 1 (Schulman's
            unbiased estimator of KL(policy || reference), joschu.net/blog/kl-approx.html), (B, T).
        importance_weights: (B, T) or (B, 1) factors of the policy term, for samples drawn by another policy
            (:mod:`grpo_train.algorithm.rollout_correction`).
        entropy, entropy_coef: subtracts entropy_coef * (token mean of ``entropy`` (B, T), with gradient) over the step.

    Raises:
        ValueError: unknown ``loss_type``; a count that the normalizer needs is missing; a bound or reference is missing
            or out of range; a shape does not match.
    """
    if isinstance(loss_type, str) and loss_type not in LOSS_TYPES:
        raise ValueError(f"unknown loss_type '{loss_type}'; known: {', '.join(LOSS_TYPES)}")
    name, estimator = (loss_type, LOSS_TYPES[loss_type]) if isinstance(loss_type, str) else ("this loss", loss_type)
    if estimator.bounds == "ratio" and epsilon_high is None:
        raise ValueError(f"{name} requires epsilon_high, the bound of the ratio (5.0 is common)")
    high = epsilon if epsilon_high is None else epsilon_high
    if delta is not None and delta <= 1 + high and estimator.bounds == "range":
        raise ValueError(f"delta {delta} must be greater than the upper clip bound 1 + {high}")
    if beta and ref_logps is None:
        raise ValueError(f"beta is {beta}, which requires ref_logps")
    if entropy_coef and entropy is None:
        raise ValueError(f"entropy_coef is {entropy_coef}, which requires entropy")
    needs_tokens = estimator.counts_tokens or bool(entropy_coef)
    if num_tokens is None and needs_tokens and (world_size > 1 or num_completions not in (None, len(logps))):
        term = name if estimator.counts_tokens else "the entropy bonus"
        raise ValueError(f"{term} divides by the tokens of the whole step; pass num_tokens for a partial batch")
    if num_completions is None and not estimator.counts_tokens and world_size > 1:
        raise ValueError("with world_size > 1 a batch is not the whole step; pass num_completions")
    for name, tensor in (("old_logps", old_logps), ("mask", mask), ("ref_logps", ref_logps), ("entropy", entropy)):
        if tensor is not None and tensor.shape != logps.shape:
            raise ValueError(f"{name} has shape {tuple(tensor.shape)}, logps {tuple(logps.shape)}")
    if advantages.shape != logps.shape[:1]:
        raise ValueError(f"advantages have shape {tuple(advantages.shape)}, not ({len(logps)},)")

    counted = mask.bool()
    mask = mask.to(logps.dtype)
    logps = logps.masked_fill(~counted, 0.0)
    old_logps = old_logps.detach().masked_fill(~counted, 0.0)
    advantage = advantages.to(logps.dtype).unsqueeze(1)
    tokens = float(counted.sum()) if num_tokens is None else num_tokens
    completions = len(logps) if num_completions is None else num_completions
    counts = Counts(max(completions, 1), tokens, max_completion_length)

    ratio = estimator.ratio(logps, old_logps, mask)
    surrogate = estimator.surrogate(ratio, advantage, logps, Clip(epsilon, high, delta))
    value = surrogate.value
    if importance_weights is not None:
        value = value * importance_weights.detach().where(counted, 0.0)
    kl = None
    if ref_logps is not None:
        difference = ref_logps.detach().masked_fill(~counted, 0.0) - logps
        kl = torch.expm1(difference) - difference
        if beta:
            value = value + beta * kl
    per_token = value * mask
    loss = (per_token * estimator.weight(mask, counts)).sum()
    if entropy_coef and entropy is not None:
        loss = loss - entropy_coef * entropy.masked_fill(~counted, 0.0).sum() / max(tokens, 1)
    return PolicyLoss(
        loss * world_size,
        per_token,
        surrogate.clipped_low & counted,
        surrogate.clipped_high & counted,
        None if kl is None else kl.detach(),
        mask,
    )
