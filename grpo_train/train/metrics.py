"""What a step is said to have done: the numbers of ``train_log.jsonl``, ``ratios.jsonl`` and ``rollouts.jsonl``.

Every rank gathers its rows; the numbers are computed once, over all completions of the step, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import torch

from grpo_train.algorithm import PolicyLoss, effective_sample_size
from grpo_train.policy.logprobs import TokenLogprobs
from grpo_train.rollout.collect import Sample
from grpo_train.sandbox.results import LEVELS
from grpo_train.tasks.shared.base import means


def rollout_row(step: int, group: int, place: int, sample: Sample, rewards: dict[str, float | None]) -> dict[str, Any]:
    """One line of ``rollouts.jsonl``, but for ``reward`` and ``advantage``, which need the whole buffer.

    ``group`` and ``place`` number the prompt and its completion (or the game and its turn) in the buffer; ``rewards``
    by function name, None where one does not apply.
    """
    verdict, problem = sample.grade.verdict, sample.prompt.problem
    return {
        "step": step,
        "group": group,
        "sample": place,
        "index": problem.index,
        "reward": None,
        "advantage": None,
        "rewards": rewards,
        "correct": verdict.correct,
        "formatted": verdict.formatted,
        "flexible": verdict.flexible,
        "reason": verdict.reason,
        "answer": verdict.answer,
        "gold": problem.answer,
        "length": len(sample.completion.ids),
        "truncated": not sample.completion.finished,
        "prompt": problem.prompt,
        "completion": sample.text,
        **({"role": sample.role} if sample.role else {}),
        **({"facts": dict(verdict.facts)} if verdict.facts else {}),
    }


def reward_metrics(
    rows: Sequence[dict[str, Any]], verdict_metrics: Sequence[Mapping[str, float]] = ()
) -> dict[str, Any]:
    """Rewards, groups and lengths of a buffer, under TRL's names (``trl/trainer/grpo_trainer.py``) where it has one.

    ``groups/all_right``, ``all_wrong`` and ``all_equal`` say why a group has no spread and teaches nothing: every
    answer right, every answer wrong, or right and wrong ones that earned the same; ``unscored``: no reward function
    applied to any of its completions. In self-play, where a group is a game and a role's reward is compared to that
    role's baseline, nothing is said of groups. ``verdict_metrics``: what the task itself measured of each attempt.
    """
    rewards = _known(row["reward"] for row in rows)
    names = sorted({name for row in rows for name in row["rewards"]})
    lengths = [row["length"] for row in rows]
    ended = [row["length"] for row in rows if not row["truncated"]]
    flexible = [float(row["flexible"]) for row in rows if row.get("flexible") is not None]
    metrics: dict[str, Any] = {
        "reward": _mean(rewards),
        **(_role_metrics(rows) if any("role" in row for row in rows) else _group_metrics(rows)),
        "accuracy": _mean([float(row["correct"]) for row in rows]),
        **({"accuracy/flexible": _mean(flexible)} if flexible else {}),
        "format": _mean([float(row["formatted"]) for row in rows]),
        **_isolation(rows),
    }
    for name in names:
        values = _known(row["rewards"].get(name) for row in rows)
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean(values), _std(values)
    return {
        **metrics,
        **means(verdict_metrics),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/mean_terminated_length": _mean(ended) if ended else 0.0,
        "completions/clipped_ratio": 1 - len(ended) / len(rows),
    }


def _isolation(rows: Sequence[dict[str, Any]]) -> dict[str, str]:
    """The weakest sandbox that a program of the buffer ran in; {} where none ran."""
    levels = {row.get("facts", {}).get("isolation") for row in rows} & set(LEVELS)
    return {"sandbox/isolation": max(levels, key=LEVELS.index)} if levels else {}


def _group_metrics(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    groups = [list(group) for _, group in groupby(rows, key=lambda row: row["group"])]
    scored = [_known(row["reward"] for row in group) for group in groups]
    spreads = [_std(values) if min(values, default=0) < max(values, default=0) else 0.0 for values in scored]
    flat = [group for group, values, spread in zip(groups, scored, spreads, strict=True) if values and spread == 0]
    right = [all(row["correct"] for row in group) for group in flat]
    wrong = [not any(row["correct"] for row in group) for group in flat]
    return {
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": sum(spread == 0 for spread in spreads) / len(groups),
        "groups/all_right": sum(right) / len(groups),
        "groups/all_wrong": sum(wrong) / len(groups),
        "groups/all_equal": (len(flat) - sum(right) - sum(wrong)) / len(groups),
        "groups/unscored": sum(not values for values in scored) / len(groups),
    }


def _role_metrics(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Of self-play: each role's mean reward over the games, and turns a game."""
    games = {(row["group"], row["role"]): row["reward"] for row in rows}
    roles = sorted({role for _, role in games})
    by_role = {role: [reward for (_, each), reward in games.items() if each == role] for role in roles}
    return {
        "reward_std": _std(_known(games.values())),
        **{f"self_play/{role}/reward": _mean(_known(rewards)) for role, rewards in by_role.items()},
        "self_play/turns": len(rows) / len({row["group"] for row in rows}),
    }


@dataclass
class TokenSums:
    """What the forwards and backwards of a step leave behind for the log."""

    sums: torch.Tensor = field(default_factory=lambda: torch.zeros(6, dtype=torch.float64))
    """(6,): loss, entropy, KL to the reference, clipped low, clipped high, tokens."""
    current: list[torch.Tensor] = field(default_factory=list)
    """Trainer's log-probability now minus the sampler's, (T_i,) float64 a completion."""
    old: list[torch.Tensor] = field(default_factory=list)
    """Trainer's log-probability before the first update of the buffer minus the sampler's, likewise."""
    weights: list[torch.Tensor] = field(default_factory=list)
    """Importance weights of the rollout correction, likewise; empty where there is none."""
    _pending: list[tuple[torch.Tensor, ...]] = field(default_factory=list)

    @torch.no_grad()
    def add(
        self,
        loss: PolicyLoss,
        tokens: TokenLogprobs,
        old_logps: torch.Tensor,
        rollout_logps: torch.Tensor,
        weights: torch.Tensor | None,
    ) -> None:
        """Take in one forward and backward; all (B, T). Nothing leaves the device: the next forward need not wait."""
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
        padded = [tokens.logps.detach() - rollout_logps, old_logps - rollout_logps]
        if weights is not None:
            padded.append(weights.expand(loss.mask.shape))
        self._pending.append((torch.stack([value.double() for value in sums]), loss.mask, *padded))

    def collect(self) -> TokenSums:
        """The step is over: everything to the CPU, without padding."""
        done = TokenSums()
        for sums, mask, *padded in self._pending:
            done.sums = done.sums + sums.cpu()
            counted = mask.cpu().bool()
            lengths = [length for length in counted.sum(dim=1).tolist() if length]
            for values, target in zip(padded, (done.current, done.old, done.weights), strict=False):
                target += values.cpu().double()[counted].split(lengths)
        return done


def token_metrics(parts: Sequence[TokenSums], cap: float) -> tuple[dict[str, float], dict[str, float]]:
    """The token-level metrics of a step and its line of importance ratios, over the ranks' ``parts``.

    All are over the completions that went through forward and backward. ``mismatch/*`` compares the trainer's policy
    before the first update of the buffer to the sampler (their KL is estimated by k3), ``ess/*`` the present policy.
    Clipped effective sample sizes bound the weights to [1 / cap, cap]. Without such completions (every group equal)
    nothing was measured and nothing is reported but the loss, which is 0.
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


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation (ddof 1); 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
