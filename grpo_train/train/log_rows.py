"""Rows of a run's logs, made from typed values: ``rollouts.jsonl``, ``train_log.jsonl`` and the console line."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo_train.config.schema import Algorithm
from grpo_train.run_dir.display import fraction, metric_value, signed
from grpo_train.train.samples import Discarded, ScoredSample, total_rewards


def rollout_rows(
    step: int, samples: Sequence[ScoredSample], rewards: torch.Tensor, advantages: torch.Tensor
) -> list[dict[str, Any]]:
    """Lines of ``rollouts.jsonl``, one per sample. ``step``: the first step that learns from them."""
    return [
        {
            "step": step,
            "group": sample.group,
            "sample": sample.slot,
            "index": sample.problem.index,
            "reward": None if math.isnan(reward) else reward,
            "advantage": advantage,
            "rewards": dict(sample.rewards),
            "correct": sample.verdict.correct,
            "formatted": sample.verdict.formatted,
            "flexible": sample.verdict.flexible,
            "reason": sample.verdict.reason,
            "answer": sample.verdict.answer,
            "gold": sample.problem.answer,
            "length": sample.length,
            "truncated": sample.truncated,
            "prompt": sample.problem.prompt,
            "completion": sample.text,
            **({"task": sample.problem.task} if sample.problem.task else {}),
            **({"role": sample.role.label} if sample.role else {}),
            **({"facts": dict(sample.verdict.facts)} if sample.verdict.facts else {}),
        }
        for sample, reward, advantage in zip(samples, rewards.tolist(), advantages.tolist(), strict=True)
    ]


def discarded_rows(step: int, discarded: Sequence[Discarded], algorithm: Algorithm) -> list[dict[str, Any]]:
    """Lines of ``rollouts.jsonl`` for samples that no step learns from: their advantage is 0, and ``discarded`` says
    why."""
    samples = [one.sample for one in discarded]
    rewards = total_rewards(samples, algorithm)
    rows = rollout_rows(step, samples, rewards, torch.zeros_like(rewards))
    return [{**row, "discarded": one.reason} for row, one in zip(rows, discarded, strict=True)]


def console_line(row: Mapping[str, Any], total_steps: int) -> str:
    """The console's line for a row of ``train_log.jsonl``."""
    reward, loss, norm = (metric_value(row["reward"]), signed(row["loss"]), metric_value(row["grad_norm"]))
    return (
        f"step {row['step']}/{total_steps}  reward {reward}  accuracy {fraction(row['accuracy'])}  loss {loss}  "
        f"length {row['completions/mean_length']:.1f}  grad_norm {norm}  {row['time/step']:.2f} s"
    )
