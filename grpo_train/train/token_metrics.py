"""Token metrics of a step: loss, entropy, KL, clipping, importance ratios, effective sample sizes.

Every rank gathers its sums; the metrics are computed once, over all tokens of the step, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import torch

from grpo_train.algorithm import PolicyLoss, effective_sample_size
from grpo_train.policy.logprobs import TokenLogprobs
from grpo_train.run_dir.tokens import FATES
from grpo_train.train.update import Piece


@dataclass
class TokenSums:
    """Sums over a rank's forward passes of one step."""

    sums: torch.Tensor = field(default_factory=lambda: torch.zeros(6, dtype=torch.float64))
    """(6,): loss, entropy, KL to the reference, clipped low, clipped high, tokens."""
    current: list[torch.Tensor] = field(default_factory=list)
    """(T_i,) float64 per completion: the trainer's current log-probabilities minus the sampler's."""
    old: list[torch.Tensor] = field(default_factory=list)
    """Likewise: the trainer's before the buffer's first update minus the sampler's."""
    weights: list[torch.Tensor] = field(default_factory=list)
    """Likewise: importance weights of the rollout correction; empty without one."""
    computed: int = 0
    """Tokens that went through the layers."""
    predicted: int = 0
    """Tokens that went through the head."""
    largest: int = 0
    """Tokens of the largest pass that went through the layers."""
    kept: dict[int, torch.Tensor] = field(default_factory=dict)
    """Of some completions, (3, T) by their index in the buffer: current log-probability, entropy, and what the loss did
    (a place in :data:`grpo_train.run_dir.tokens.FATES`). Not collected."""
    _pending: list[tuple[torch.Tensor, ...]] = field(default_factory=list)

    @torch.no_grad()
    def add(
        self, loss: PolicyLoss, tokens: TokenLogprobs, piece: Piece, kept: Mapping[int, int] = MappingProxyType({})
    ) -> None:
        """Add one forward pass. Its tensors stay on the device, so that the next forward need not wait.

        ``kept`` has the places in it of completions whose tokens are kept, by their indices in the buffer.
        """
        for row, place in kept.items():
            fate = loss.clipped_low[place].double() + 2 * loss.clipped_high[place].double()
            removed = loss.mask[place] == 0
            if piece.weights is not None:
                removed |= piece.weights[place] == 0
            fate = fate.masked_fill(removed, FATES.index("masked"))
            values = (tokens.logps.detach()[place], tokens.entropy.detach()[place], fate)
            self.kept[row] = torch.stack([value.double() for value in values])
        kl = loss.kl_per_token.sum() if loss.kl_per_token is not None else loss.loss.new_zeros(())
        low, high = loss.clipped_low.sum(), loss.clipped_high.sum()
        sums = (
            loss.loss.detach(),
            (tokens.entropy.detach() * loss.mask).sum(dtype=torch.float64),
            kl,
            low,
            high,
            loss.mask.sum(),
        )
        padded = [tokens.logps.detach() - piece.rollout_logps, piece.old_logps - piece.rollout_logps]
        if piece.weights is not None:
            padded.append(piece.weights.expand(loss.mask.shape))
        self.computed, self.predicted = self.computed + tokens.computed, self.predicted + tokens.predicted
        self.largest = max(self.largest, tokens.computed)
        self._pending.append((torch.stack([value.double() for value in sums]), loss.mask, *padded))

    def collect(self) -> TokenSums:
        """The step's sums on the CPU, without padding."""
        done = TokenSums(computed=self.computed, predicted=self.predicted)
        for sums, mask, *padded in self._pending:
            done.sums = done.sums + sums.cpu()
            counted = mask.cpu().bool()
            lengths = [length for length in counted.sum(dim=1).tolist() if length]
            for values, target in zip(padded, (done.current, done.old, done.weights), strict=False):
                target += values.cpu().double()[counted].split(lengths)
        return done


def token_metrics(parts: Sequence[TokenSums], cap: float) -> tuple[dict[str, float], dict[str, float]]:
    """Token metrics of a step and its row of importance ratios, over the ranks' ``parts``.

    Only completions that were computed count. ``mismatch/*`` compares the trainer's policy before the buffer's first
    update to the sampler (KL estimated by k3), ``ess/*`` the current policy. Clipped effective sample sizes bound the
    weights to [1 / cap, cap]. If no completion was computed (every group's rewards are equal), only the loss and the KL
    are reported, both 0.
    """
    loss, entropy, kl, low, high, tokens = torch.stack([part.sums for part in parts]).sum(dim=0).tolist()
    metrics = {"loss": loss, "kl": kl / max(tokens, 1)}
    if not tokens:
        return metrics, {"tokens": 0.0}
    current_by_completion = [c for part in parts for c in part.current]
    current, old = torch.cat(current_by_completion), torch.cat([o for part in parts for o in part.old])
    sequences = torch.stack([c.sum() for c in current_by_completion])
    ratio, bounds = old.exp(), (1 / cap, cap)
    metrics |= {
        "entropy": entropy / tokens,
        "clip_ratio/low_mean": low / tokens,
        "clip_ratio/high_mean": high / tokens,
        "clip_ratio/region_mean": (low + high) / tokens,
        "ess/token": float(effective_sample_size(current)),
        "ess/sequence": float(effective_sample_size(sequences)),
        "ess/token_clipped": float(effective_sample_size(current, bounds)),
        "ess/sequence_clipped": float(effective_sample_size(sequences, bounds)),
        "mismatch/kl": float((torch.expm1(old) - old).mean()),
        "mismatch/ratio_mean": float(ratio.mean()),
        "mismatch/ratio_min": float(ratio.min()),
        "mismatch/ratio_max": float(ratio.max()),
        "mismatch/outside_0.9_1.1": _outside(ratio),
    }
    weights = torch.cat([w for part in parts for w in part.weights]) if any(part.weights for part in parts) else None
    if weights is not None:
        metrics["mismatch/correction_mean"] = float(weights.mean())
    now = current.exp()
    ratios = {
        "tokens": tokens,
        "ratio/mean": float(now.mean()),
        "ratio/min": float(now.min()),
        "ratio/max": float(now.max()),
        "ratio/outside_0.9_1.1": _outside(now),
        "logp_difference/mean": float(old.abs().mean()),
        "logp_difference/max": float(old.abs().max()),
        **{key: value for key, value in metrics.items() if key.startswith(("mismatch/", "ess/"))},
    }
    return metrics, ratios


def _outside(ratio: torch.Tensor) -> float:
    return math.nan if ratio.isnan().any() else float(((ratio < 0.9) | (ratio > 1.1)).double().mean())
