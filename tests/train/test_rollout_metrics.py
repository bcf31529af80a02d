"""Rollout metrics and buffers of hand-made samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from grpo_train.config import load_config
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Sample
from grpo_train.tasks import Attempt, Problem, Verdict
from grpo_train.train.buffer import groups_of, make_buffer
from grpo_train.train.distributed import World
from grpo_train.train.samples import compute_advantages, gather_samples, total_rewards
from grpo_train.train.step_log import rollout_metrics, rollout_rows
from tests.support.engine import config_text


def metrics_of(
    rewards: Sequence[float | None],
    size: int,
    correct: Sequence[bool] | None = None,
    by_function: Sequence[dict[str, float | None]] | None = None,
    lengths: Sequence[int] | None = None,
    truncated: Sequence[bool] | None = None,
) -> dict[str, Any]:
    """Metrics of groups of ``size`` samples with these total rewards; the default reward function is "score"."""
    samples = [
        Sample(
            group=i // size,
            slot=i % size,
            problem=Problem(0, "", "", ""),
            text="",
            prompt_length=3,
            length=lengths[i] if lengths else 5,
            truncated=bool(truncated and truncated[i]),
            verdict=Verdict(bool(correct and correct[i]), True, "ok", None),
            rewards=by_function[i] if by_function else {"score": reward},
        )
        for i, reward in enumerate(rewards)
    ]
    totals = torch.tensor([math.nan if reward is None else reward for reward in rewards], dtype=torch.float64)
    return rollout_metrics(samples, totals)


def test_equal_rewards_have_zero_spread() -> None:
    """Their mean is rounded: six times 0.7 do not sum to 6 x 0.7."""
    line = metrics_of([0.7] * 12, size=6)
    assert line["frac_reward_zero_std"] == 1.0
    assert line["reward_std"] == 0.0
    assert line["groups/all_wrong"] == 1.0
    assert line["reward"] == pytest.approx(0.7)


def test_reasons_for_groups_without_spread() -> None:
    rewards = [2.0, 2.0, 0.0, 0.0, 1.0, 1.0, 2.0, 0.0]
    line = metrics_of(rewards, size=2, correct=[True, True, False, False, True, False, True, False])
    assert line["frac_reward_zero_std"] == 0.75
    assert [line[f"groups/{reason}"] for reason in ("all_correct", "all_wrong", "all_equal")] == [0.25, 0.25, 0.25]
    assert line["groups/unscored"] == 0
    assert line["reward"] == 1.0
    assert line["reward_std"] == pytest.approx(math.sqrt(2) / 4), "ddof 1, the mean over the groups"
    assert line["rewards/score/std"] == pytest.approx(math.sqrt(6 / 7)), "ddof 1, over all completions"
    assert line["accuracy"] == 0.5


def test_lengths_of_terminated_and_truncated() -> None:
    line = metrics_of([1.0, 0.0, 0.0, 0.0], size=2, lengths=[3, 9, 5, 9], truncated=[False, True, False, True])
    names = ("mean_length", "min_length", "max_length", "mean_terminated_length", "clipped_ratio")
    assert [line[f"completions/{name}"] for name in names] == [6.5, 3.0, 9.0, 4.0, 0.5]
    truncated = metrics_of([1.0, 0.0], size=2, truncated=[True, True])
    assert (truncated["completions/mean_terminated_length"], truncated["completions/clipped_ratio"]) == (0.0, 1.0)


def test_rewards_that_apply_to_some_completions() -> None:
    scores = [{"score": 1.0, "other": None}, {"score": 3.0, "other": 4.0}, {"score": None}, {"score": 2.0}]
    line = metrics_of([1.0, 7.0, None, 2.0], size=2, by_function=scores)
    assert line["reward"] == pytest.approx(10 / 3)
    assert line["reward_std"] == pytest.approx(math.sqrt(18) / 2), "a group of one known reward has a spread of 0"
    assert line["frac_reward_zero_std"] == 0.5
    assert (line["rewards/score/mean"], line["rewards/score/std"]) == pytest.approx((2.0, 1.0))
    assert (line["rewards/other/mean"], line["rewards/other/std"]) == (4.0, 0.0)


def test_rewards_that_apply_to_no_completion() -> None:
    line = metrics_of([None] * 4, size=2)
    assert math.isnan(line["reward"])
    assert math.isnan(line["rewards/score/mean"])
    assert (line["reward_std"], line["frac_reward_zero_std"], line["groups/unscored"]) == (0.0, 1.0, 1.0)
    assert [line[f"groups/{reason}"] for reason in ("all_correct", "all_wrong", "all_equal")] == [0, 0, 0]
    half = metrics_of([None, None, 1.0, 0.0], size=2)
    assert (half["reward"], half["frac_reward_zero_std"], half["groups/unscored"]) == (0.5, 0.5, 0.5)


@pytest.mark.parametrize("nothing", [None, math.nan])
def test_a_buffer_without_rewards_moves_nothing(nothing: float | None) -> None:
    config = load_config(config_text(rollout__buffer_size=2, rollout__num_generations=2))
    problems = [Problem(index=k, prompt="1+1=", answer="2", question="1+1") for k in range(2)]
    completions = [Completion((1, 2, 3), (4,) * (k + 1), (-0.5,) * (k + 1), True) for k in range(4)]
    verdict = Verdict(False, False, "none", None)
    rollouts = [
        Sample.of(k // 2, k % 2, Attempt(problems[k // 2], ""), completion, verdict, {"accuracy": nothing})
        for k, completion in enumerate(completions)
    ]
    my_groups = groups_of(World(), config)
    samples = gather_samples(rollouts, World())
    rewards = total_rewards(samples, config.algorithm)
    advantages = compute_advantages(samples, rewards, config)
    assert [row["reward"] for row in rollout_rows(1, samples, rewards, advantages)] == [None] * 4
    assert make_buffer(rollouts, my_groups, samples, advantages, config).advantages.tolist() == [0.0] * 4
    metrics = rollout_metrics(samples, rewards)
    assert math.isnan(metrics["reward"])
    assert metrics["frac_reward_zero_std"] == metrics["groups/unscored"] == 1
    assert sum(sample.prompt_length + sample.length for sample in samples) == 4 * 3 + 1 + 2 + 3 + 4
