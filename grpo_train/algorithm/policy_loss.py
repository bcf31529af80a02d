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
        old_logps: (B, T) of the policy that the ratio rho = exp(logps - old_logps) is taken to; a constant.
        advantages: (B,).
        mask: (B, T), 1 on completion tokens that count. What stands elsewhere has no say, even where it is not finite.
        loss_type: dr_grpo, grpo, bnpo, dapo, gspo or cispo; see :mod:`grpo_train.algorithm.losses`.
        epsilon, epsilon_high: clip range [1 - epsilon, 1 + epsilon_high]; ``epsilon_high`` defaults to ``epsilon``.
            For cispo ``epsilon_high`` is the ratio's bound itself and must be given.
        delta: two-sided clipping, the bound of a ratio whose advantage is negative; above 1 + epsilon_high.
        max_completion_length: L, the generation budget in tokens (dr_grpo).
        num_completions: N, completions of the whole step; default B: the batch is the whole step.
        num_tokens: unmasked completion tokens of the whole step; default those of ``mask``, where the batch is the
            whole step.
        world_size: ranks over which the caller will average (1 where gradients are summed).
        beta, ref_logps: adds beta * k3 to each token's loss, k3 = exp(ref - logp) - (ref - logp) - 1 (Schulman's
            unbiased estimator of KL(policy || reference), joschu.net/blog/kl-approx.html), (B, T).
        importance_weights: (B, T) or (B, 1), multiplied onto the policy term: corrects for samples that another
            policy drew (:mod:`grpo_train.algorithm.rollout_correction`).
        entropy, entropy_coef: subtracts entropy_coef * (token mean of ``entropy`` (B, T), with gradient) over the step.

    Raises:
        ValueError: an unknown ``loss_type``; a count that the normaliser needs and cannot be known from this batch; a
            bound or reference that is missing or senseless; a tensor of another shape.
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
    needs_tokens = estimator.counts_tokens or bool(entropy_coef)
    if num_tokens is None and needs_tokens and (world_size > 1 or num_completions not in (None, len(logps))):
        what = loss_type if estimator.counts_tokens else "an entropy bonus"
        raise ValueError(f"{what} divides by the tokens of the whole step, and this batch is a part: give num_tokens")
    if num_completions is None and not estimator.counts_tokens and world_size > 1:
        raise ValueError("with world_size > 1 a batch is not the whole step: give num_completions")
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
