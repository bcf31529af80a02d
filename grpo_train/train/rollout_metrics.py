"""Rollout metrics of a buffer: rewards, groups and lengths, over the samples of all ranks, in float64.

Names are TRL's (``trl/trainer/grpo_trainer.py``) where it has one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import torch

from grpo_train.sandbox.results import LEVELS
from grpo_train.tasks.shared.base import means
from grpo_train.train.samples import ScoredSample


def rollout_metrics(samples: Sequence[ScoredSample], rewards: torch.Tensor) -> dict[str, Any]:
    """Metrics of a buffer's samples, in the order of their groups, and their total rewards (B,).

    ``groups/all_correct``, ``all_wrong`` and ``all_equal`` give the reason why a group has no spread and carries no
    signal: all answers correct, all wrong, or mixed with equal rewards. ``groups/unscored``: no reward function applied
    to any of its completions. Self-play has no group metrics: there a role's reward is compared to its baseline.
    """
    totals = [None if math.isnan(reward) else reward for reward in rewards.tolist()]
    verdicts = [sample.verdict for sample in samples]
    lengths = [sample.length for sample in samples]
    terminated = [sample.length for sample in samples if not sample.truncated]
    flexible = [float(verdict.flexible) for verdict in verdicts if verdict.flexible is not None]
    is_self_play = any(sample.role for sample in samples)
    metrics: dict[str, Any] = {
        "reward": _mean(_known(totals)),
        **(_role_metrics(samples, totals) if is_self_play else _group_metrics(samples, totals)),
        "accuracy": _mean([float(verdict.correct) for verdict in verdicts]),
        **({"accuracy/flexible": _mean(flexible)} if flexible else {}),
        "format": _mean([float(verdict.formatted) for verdict in verdicts]),
        **_isolation(samples),
    }
    for name in sorted({name for sample in samples for name in sample.rewards}):
        values = _known(sample.rewards.get(name) for sample in samples)
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean(values), _std(values)
    return {
        **metrics,
        **_task_metrics(samples, totals),
        **means([verdict.metrics for verdict in verdicts]),
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/mean_terminated_length": _mean(terminated) if terminated else 0.0,
        "completions/clipped_ratio": 1 - len(terminated) / len(samples),
    }


def _task_metrics(samples: Sequence[ScoredSample], totals: Sequence[float | None]) -> dict[str, float]:
    """Metrics of each task of a mixture that the buffer has prompts of."""
    metrics: dict[str, float] = {}
    for task in sorted({sample.problem.task for sample in samples} - {""}):
        pairs = [(sample, total) for sample, total in zip(samples, totals, strict=True) if sample.problem.task == task]
        mine = [sample for sample, _ in pairs]
        groups = _group_metrics(mine, [total for _, total in pairs])
        metrics |= {
            f"task/{task}/reward": _mean(_known(total for _, total in pairs)),
            f"task/{task}/accuracy": _mean([float(sample.verdict.correct) for sample in mine]),
            f"task/{task}/frac_reward_zero_std": groups["frac_reward_zero_std"],
            f"task/{task}/mean_length": _mean([sample.length for sample in mine]),
            f"task/{task}/prompts": float(len({sample.group for sample in mine})),
        }
    return metrics


def _isolation(samples: Sequence[ScoredSample]) -> dict[str, str]:
    """The weakest sandbox level of the buffer's programs; {} without programs."""
    levels = {sample.verdict.facts.get("isolation") for sample in samples}
    found = [level for level in LEVELS if level in levels]  # the strongest first
    return {"sandbox/isolation": found[-1]} if found else {}


def _group_metrics(samples: Sequence[ScoredSample], totals: Sequence[float | None]) -> dict[str, float]:
    pairs = groupby(zip(samples, totals, strict=True), key=lambda pair: pair[0].group)
    groups = [list(group) for _, group in pairs]
    scored = [_known(total for _, total in group) for group in groups]
    spreads = [_std(values) if min(values, default=0) < max(values, default=0) else 0.0 for values in scored]
    flat = [group for group, values, spread in zip(groups, scored, spreads, strict=True) if values and spread == 0]
    correct = sum(all(sample.verdict.correct for sample, _ in group) for group in flat)
    wrong = sum(not any(sample.verdict.correct for sample, _ in group) for group in flat)
    return {
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": sum(spread == 0 for spread in spreads) / len(groups),
        "groups/all_correct": correct / len(groups),
        "groups/all_wrong": wrong / len(groups),
        "groups/all_equal": (len(flat) - correct - wrong) / len(groups),
        "groups/unscored": sum(not values for values in scored) / len(groups),
    }


def _role_metrics(samples: Sequence[ScoredSample], totals: Sequence[float | None]) -> dict[str, float]:
    """Self-play: each role's mean reward over the games, and turns per game."""
    games = {(sample.group, sample.role): total for sample, total in zip(samples, totals, strict=True)}
    roles = sorted({role for _, role in games if role is not None})
    by_role = {role: [total for (_, other), total in games.items() if other == role] for role in roles}
    return {
        "reward_std": _std(_known(games.values())),
        **{f"self_play/{role.label}/reward": _mean(_known(rewards)) for role, rewards in by_role.items()},
        "self_play/turns": len(samples) / len({sample.group for sample in samples}),
    }


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
