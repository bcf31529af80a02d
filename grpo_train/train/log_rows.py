"""Rows of a run's logs, made from typed values: ``rollouts.jsonl``, ``train_log.jsonl`` and the console line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo_train.train.samples import ScoredSample


def rollout_rows(
    step: int, samples: Sequence[ScoredSample], rewards: torch.Tensor, advantages: torch.Tensor
) -> list[dict[str, Any]]:
    """Lines of ``rollouts.jsonl``, one per sample. ``step``: the first step that learns from them."""
    return [
        _rollout_row(step, sample, None if math.isnan(reward) else reward, advantage)
        for sample, reward, advantage in zip(samples, rewards.tolist(), advantages.tolist(), strict=True)
    ]


def _rollout_row(step: int, sample: ScoredSample, reward: float | None, advantage: float) -> dict[str, Any]:
    verdict, problem = sample.verdict, sample.problem
    return {
        "step": step,
        "group": sample.group,
        "sample": sample.slot,
        "index": problem.index,
        "reward": reward,
        "advantage": advantage,
        "rewards": dict(sample.rewards),
        "correct": verdict.correct,
        "formatted": verdict.formatted,
        "flexible": verdict.flexible,
        "reason": verdict.reason,
        "answer": verdict.answer,
        "gold": problem.answer,
        "length": sample.length,
        "truncated": sample.truncated,
        "prompt": problem.prompt,
        "completion": sample.text,
        **({"role": sample.role.label} if sample.role else {}),
        **({"facts": dict(verdict.facts)} if verdict.facts else {}),
    }


def console_line(row: Mapping[str, Any], total_steps: int) -> str:
    """The console's line for a row of ``train_log.jsonl``."""
    return (
        f"step {row['step']}/{total_steps}  reward {row['reward']:.3f}  accuracy {row['accuracy']:.3f}  "
        f"loss {row['loss']:+.4f}  length {row['completions/mean_length']:.1f}  "
        f"grad_norm {row['grad_norm']:.3f}  {row['time/step']:.2f} s"
    )
