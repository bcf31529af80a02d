"""The loss of a batch of completions, for every estimator of :mod:`grpo_train.algorithm.losses`."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from grpo_train.algorithm.losses import LOSS_TYPES
from grpo_train.algorithm.losses.parts import Clip, Counts


@dataclass(frozen=True)
class PolicyLoss:
    """A loss and what explains it."""

    loss: torch.Tensor
    """Scalar, to call ``backward`` on."""
    per_token: torch.Tensor
    """(B, T) before normalisation, the KL term included; 0 outside the mask."""
    clipped_low: torch.Tensor
    """(B, T) bool: tokens whose ratio lies below the clip range while the advantage is negative."""
    clipped_high: torch.Tensor
    """(B, T) bool: tokens whose ratio lies above the clip range while the advantage is positive."""
    kl_per_token: torch.Tensor | None
    """(B, T) k3 estimate of KL(policy || reference), detached; None without a reference."""
    mask: torch.Tensor
    """(B, T), as used."""

    @property
    def clip_fraction_low(self) -> torch.Tensor:
        """Share of the completion tokens in :attr:`clipped_low`."""
        return self.clipped_low.sum() / self.mask.sum().clamp(min=1)

    @property
    def clip_fraction_high(self) -> torch.Tensor:
        """Share of the completion tokens in :attr:`clipped_high`."""
        return self.clipped_high.sum() / self.mask.sum().clamp(min=1)

    @property
    def kl(self) -> torch.Tensor:
        """Token mean of :attr:`kl_per_token`; 0 without a reference."""
        if self.kl_per_token is None:
            return self.loss.new_zeros(())
        return self.kl_per_token.sum() / self.mask.sum().clamp(min=1)


def policy_loss(
    logps: torch.Tensor,
    old_logps: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    loss_type: str,
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
    """The policy loss of one micro-batch, normalised for the whole optimizer step.

    With B completions that are part of a step, summing the losses (or gradients) of all its micro-batches and ranks
    gives the step's; ``world_size`` W scales the loss up by W for a data-parallel *mean* over ranks.

    Args:
        logps: (B, T) log-probabilities of the policy, with gradient.
        old_logps: (B, T) of the policy that the ratio rho = exp(logps - old_logps) is taken to.
        advantages: (B,).
        mask: (B, T), 1 on completion tokens that count.
        loss_type: dr_grpo, grpo, bnpo, dapo, gspo or cispo; see :mod:`grpo_train.algorithm.losses`.
        epsilon, epsilon_high: clip range [1 - epsilon, 1 + epsilon_high]; ``epsilon_high`` defaults to ``epsilon``.
            For cispo ``epsilon_high`` is the ratio's bound itself and must be given.
        delta: two-sided clipping, the bound of a ratio whose advantage is negative; above 1 + epsilon_high.
        max_completion_length: L, the generation budget in tokens (dr_grpo).
        num_completions: N, completions of the whole step; default B: the batch is the whole step.
        num_tokens: unmasked completion tokens of the whole step; default those of ``mask``.
        world_size: ranks over which the caller will average (1 where gradients are summed).
        beta, ref_logps: adds beta * k3 to each token's loss, k3 = exp(ref - logp) - (ref - logp) - 1 (Schulman's
            unbiased estimator of KL(policy || reference), joschu.net/blog/kl-approx.html), (B, T).
        importance_weights: (B, T) or (B, 1), multiplied onto the policy term: corrects for samples that another
            policy drew (:mod:`grpo_train.algorithm.rollout_correction`).
        entropy, entropy_coef: subtracts entropy_coef * (token mean of ``entropy`` (B, T), with gradient) over the step.

    Raises:
        ValueError: an unknown ``loss_type``; a count that the normaliser needs and cannot be known from this batch; a
            bound or reference that is missing or senseless.
    """
    if loss_type not in LOSS_TYPES:
        raise ValueError(f"unknown loss_type '{loss_type}': it is one of {', '.join(LOSS_TYPES)}")
    estimator = LOSS_TYPES[loss_type]
    if loss_type == "cispo" and epsilon_high is None:
        raise ValueError("cispo: epsilon_high is the bound of the ratio itself and has no default here (5.0 is usual)")
    high = epsilon if epsilon_high is None else epsilon_high
    if delta is not None and delta <= 1 + high and loss_type != "cispo":
        raise ValueError(f"delta {delta} must lie above the clip range's upper end 1 + {high}")
    if beta and ref_logps is None:
        raise ValueError(f"beta is {beta}: give ref_logps, the reference's log-probabilities")
    if entropy_coef and entropy is None:
        raise ValueError(f"entropy_coef is {entropy_coef}: give entropy")
    whole = num_completions is None and world_size == 1
    if num_tokens is None and not whole and (estimator.counts_tokens or entropy_coef):
        raise ValueError(f"{loss_type} divides by the tokens of the whole step: give num_tokens with num_completions")
    if num_completions is None and world_size > 1:
        raise ValueError("with world_size > 1 a batch is not the whole step: give num_completions and num_tokens")

    mask = mask.to(logps.dtype)
    advantage = advantages.to(logps.dtype).unsqueeze(1)
    tokens = float(mask.sum()) if num_tokens is None else num_tokens
    counts = Counts(num_completions or logps.shape[0], tokens, max_completion_length)

    ratio = estimator.ratio(logps, old_logps, mask)
    surrogate = estimator.surrogate(ratio, advantage, logps, Clip(epsilon, high, delta))
    value = surrogate.value if importance_weights is None else surrogate.value * importance_weights
    kl = None
    if ref_logps is not None:
        difference = (ref_logps - logps) * mask
        kl = torch.expm1(difference) - difference
        if beta:
            value = value + beta * kl
    per_token = value * mask
    loss = (per_token * estimator.weight(mask, counts)).sum()
    if entropy_coef and entropy is not None:
        loss = loss - entropy_coef * (entropy * mask).sum() / max(tokens, 1)
    counted = mask.bool()
    return PolicyLoss(
        loss * world_size,
        per_token,
        surrogate.clipped_low & counted,
        surrogate.clipped_high & counted,
        None if kl is None else kl.detach(),
        mask,
    )
