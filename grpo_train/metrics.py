"""What a step is said to have done: the numbers of ``train_log.jsonl``, ``ratios.jsonl`` and ``rollouts.jsonl``.

Every rank gathers its rows; the numbers are computed once, over all completions of the step, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_train.policy.logprobs import PaddedBatch
from grpo_train.rewards import Grade
from grpo_train.rollout import Completion
from grpo_train.rollout.prompts import Prompt


def rollout_row(
    step: int,
    group: int,
    sample: int,
    prompt: Prompt,
    completion: Completion,
    text: str,
    grade: Grade,
    advantage: float,
) -> dict[str, Any]:
    """One line of ``rollouts.jsonl``. ``group`` and ``sample`` number the prompt and its completion in the step."""
    return {
        "step": step,
        "group": group,
        "sample": sample,
        "index": prompt.problem.index,
        "reward": grade.reward,
        "advantage": advantage,
        "rewards": grade.rewards,
        "correct": grade.correct,
        "formatted": grade.formatted,
        "reason": grade.reason,
        "answer": grade.answer,
        "gold": prompt.problem.answer,
        "length": len(completion.ids),
        "truncated": not completion.finished,
        "prompt": prompt.problem.prompt,
        "completion": text,
    }


def reward_metrics(rows: Sequence[dict[str, Any]], num_generations: int) -> dict[str, float]:
    """Rewards and lengths of a step, under TRL's names (``trl/trainer/grpo_trainer.py``)."""
    groups = [rows[i : i + num_generations] for i in range(0, len(rows), num_generations)]
    rewards = [row["reward"] for row in rows]
    spreads = [_std([row["reward"] for row in group]) for group in groups]
    names = sorted({name for row in rows for name in row["rewards"]})
    lengths = [row["length"] for row in rows]
    ended = [row["length"] for row in rows if not row["truncated"]]
    metrics = {
        "reward": _mean(rewards),
        "reward_std": _mean(spreads),
        "frac_reward_zero_std": _mean([float(spread == 0) for spread in spreads]),
        "accuracy": _mean([float(row["correct"]) for row in rows]),
        "format": _mean([float(row["formatted"]) for row in rows]),
    }
    for name in names:
        values = [row["rewards"][name] for row in rows if name in row["rewards"]]
        metrics[f"rewards/{name}/mean"], metrics[f"rewards/{name}/std"] = _mean(values), _std(values)
    return {
        **metrics,
        "completions/mean_length": _mean(lengths),
        "completions/min_length": float(min(lengths)),
        "completions/max_length": float(max(lengths)),
        "completions/mean_terminated_length": _mean(ended) if ended else 0.0,
        "completions/clipped_ratio": 1 - len(ended) / len(rows),
    }


@dataclass
class TokenSums:
    """Sums over the completion tokens of a rank's micro-batches; ranks' sums add up."""

    loss: float = 0.0
    entropy: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    differences: list[torch.Tensor] = field(default_factory=list)
    """Trainer's minus rollout's log-probability of each token."""

    def add(self, loss: Any, entropy_BT: torch.Tensor, logps_BT: torch.Tensor, batch: PaddedBatch) -> None:
        """Take in one micro-batch (``loss`` is a PolicyLoss)."""
        mask = batch.completion_mask.bool()
        self.loss += float(loss.loss.detach())
        self.entropy += float(entropy_BT.double().sum())
        self.clipped_low += float(loss.clipped_low)
        self.clipped_high += float(loss.clipped_high)
        self.differences.append((logps_BT.detach() - batch.rollout_logps)[mask].double().cpu())


def token_metrics(parts: Sequence[TokenSums]) -> tuple[dict[str, float], dict[str, float]]:
    """The token-level metrics of a step and its line of importance ratios (trainer over rollout policy).

    The effective sample size is (sum w)^2 / (n sum w^2) over tokens; the KL of the mismatch is estimated by k3.
    """
    difference = torch.cat([d for part in parts for d in part.differences])
    tokens = max(1, difference.numel())
    ratio = difference.exp()
    ess = float(ratio.sum() ** 2 / (tokens * (ratio**2).sum())) if difference.numel() else math.nan
    kl = float((torch.expm1(difference) - difference).mean()) if difference.numel() else math.nan
    metrics = {
        "loss": sum(part.loss for part in parts),
        "entropy": sum(part.entropy for part in parts) / tokens,
        "kl": 0.0,  # of the policy to a reference model; there is none while beta is 0
        "clip_ratio/low_mean": sum(part.clipped_low for part in parts) / tokens,
        "clip_ratio/high_mean": sum(part.clipped_high for part in parts) / tokens,
        "ess/token": ess,
        "mismatch/kl": kl,
    }
    ratios = {
        "tokens": float(difference.numel()),
        "ratio/mean": float(ratio.mean()) if difference.numel() else math.nan,
        "ratio/min": float(ratio.min()) if difference.numel() else math.nan,
        "ratio/max": float(ratio.max()) if difference.numel() else math.nan,
        "ratio/outside_0.9_1.1": float(((ratio < 0.9) | (ratio > 1.1)).double().mean()) if difference.numel() else 0.0,
        "logp_difference/mean": float(difference.abs().mean()) if difference.numel() else math.nan,
        "logp_difference/max": float(difference.abs().max()) if difference.numel() else math.nan,
        "mismatch/kl": kl,
        "ess/token": ess,
    }
    return metrics, ratios


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def _std(values: Sequence[float]) -> float:
    """Sample standard deviation (ddof 1); 0 for a single value."""
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))
