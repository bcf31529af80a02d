"""Advantages and rewards: values computed twice by hand, and invariants."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.algorithm import combine_rewards, group_advantages, overlong_penalty

GOLDEN = Path(__file__).parents[3] / "shared" / "golden" / "losses.json"
REWARDS = [1.0, 0.0, 1.0, 0.5]
ADVANTAGES = [0.5, -0.5, 0.25, -0.25]
SCALES = ("none", "group", "batch", "mean")


def tensor(values: list[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual, expected, atol=tolerance, rtol=0)


@st.composite
def reward_groups(draw: st.DrawFn, *, missing: bool = True) -> tuple[torch.Tensor, int]:
    """(B,) rewards, a few of them NaN, and the group size. Few distinct values, so that ties are common."""
    generations, groups = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    value = st.one_of(st.sampled_from([0.0, 1.0, 0.1, -2.0]), st.floats(-100, 100))
    if missing:
        value = st.one_of(value, value, value, st.just(math.nan))
    size = generations * groups
    return tensor(draw(st.lists(value, min_size=size, max_size=size))), generations


# -------------------------------------------------------------------------------------------------------------- golden


def test_golden_advantages() -> None:
    close(group_advantages(tensor(REWARDS), 2), tensor(ADVANTAGES))


def test_a_group_is_divided_by_its_mean() -> None:
    """Values of prime-rl's ``MaxRLAlgorithm`` at 559b44772: (r - mean) / mean, 0 where the mean is not above 0."""
    rewards = tensor([1.0, 0.0, 1.0, 0.5, 0.0, 0.0, -1.0, 0.5, math.nan, 2.0])
    found = [1.0, -1.0, 1 / 3, -1 / 3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    close(group_advantages(rewards, 2, "mean"), tensor(found))


if GOLDEN.is_file():  # absent beside a clone

    def test_constants_match_the_golden_file() -> None:
        golden = json.loads(GOLDEN.read_text())
        assert golden["input"]["rewards"] == REWARDS
        assert golden["input"]["num_generations"] == 2
        assert golden["expected"]["advantages_unscaled"] == ADVANTAGES


def test_sample_standard_deviation_plus_1e_4() -> None:
    # Two values d apart have the sample standard deviation d / sqrt(2).
    close(group_advantages(tensor(REWARDS), 2, "group"), tensor([
        0.5 / (math.sqrt(0.5) + 1e-4), -0.5 / (math.sqrt(0.5) + 1e-4),
        0.25 / (math.sqrt(0.125) + 1e-4), -0.25 / (math.sqrt(0.125) + 1e-4),
    ]))  # fmt: skip
    # Mean 0.625, squared distances .140625, .390625, .140625, .015625.
    spread = math.sqrt(0.6875 / 3) + 1e-4
    close(group_advantages(tensor(REWARDS), 2, "batch"), tensor(ADVANTAGES) / spread)


# ---------------------------------------------------------------------------------------------------------- invariants


@given(reward_groups(), st.sampled_from(SCALES))
def test_each_group_sums_to_zero(case: tuple[torch.Tensor, int], scale: str) -> None:
    rewards, generations = case
    advantages = group_advantages(rewards, generations, scale).view(-1, generations)
    assert advantages.isfinite().all()
    bound = 1e-12 * advantages.abs().amax(dim=1).clamp(min=1) * generations
    if scale != "none":  # a tiny standard deviation magnifies the rounding of the mean
        bound = bound + 1e-14 * rewards.nan_to_num().abs().max() * generations / 1e-4
    assert (advantages.sum(dim=1).abs() <= bound).all()


@given(reward_groups(), st.sampled_from(SCALES))
def test_equal_rewards_give_exactly_zero(case: tuple[torch.Tensor, int], scale: str) -> None:
    rewards, generations = case
    advantages = group_advantages(rewards, generations, scale).view(-1, generations)
    for row, group in zip(advantages, rewards.view(-1, generations), strict=True):
        if len(set(group[~group.isnan()].tolist())) <= 1:
            assert (row == 0).all()


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounded_mean_of_equal_rewards_gives_zero(scale: str, dtype: torch.dtype) -> None:
    rewards = torch.full((7,), 0.1, dtype=dtype)
    assert rewards.mean() != rewards[0] or dtype is torch.float64  # in float32 the mean is rounded
    assert (group_advantages(rewards, 7, scale) == 0).all()


@given(reward_groups(), st.sampled_from(["none", "group"]))
def test_nan_reward_does_not_affect_its_group(case: tuple[torch.Tensor, int], scale: str) -> None:
    rewards, generations = case
    advantages = group_advantages(rewards, generations, scale)
    assert (advantages[rewards.isnan()] == 0).all()
    for first in range(0, len(rewards), generations):
        group = rewards[first : first + generations]
        known = ~group.isnan()
        if known.any():
            alone = group_advantages(group[known], int(known.sum()), scale)
            close(advantages[first : first + generations][known], alone, 1e-10)


@given(reward_groups(missing=False))
def test_batch_scale_is_one_factor(case: tuple[torch.Tensor, int]) -> None:
    rewards, generations = case
    plain, scaled = group_advantages(rewards, generations), group_advantages(rewards, generations, "batch")
    spread = float(rewards.std(correction=1)) if len(rewards) > 1 else 0.0
    torch.testing.assert_close(scaled * (spread + 1e-4), plain, atol=1e-11, rtol=1e-9)


@given(reward_groups(missing=False), st.floats(-50, 50))
def test_adding_a_constant_changes_nothing(case: tuple[torch.Tensor, int], shift: float) -> None:
    rewards, generations = case
    close(group_advantages(rewards + shift, generations), group_advantages(rewards, generations), 1e-10)


def test_rewards_may_be_integers_or_a_view() -> None:
    close(group_advantages(torch.tensor([1, 0]), 2).double(), tensor([0.5, -0.5]))
    close(group_advantages(tensor([1, 9, 0, 9])[::2], 2), tensor([0.5, -0.5]))


def test_invalid_arguments_are_errors() -> None:
    with pytest.raises(ValueError, match="5 rewards do not divide into groups of 2"):
        group_advantages(torch.zeros(5), 2)
    with pytest.raises(ValueError, match="unknown scale_rewards 'std'; known: none, group, batch"):
        group_advantages(torch.zeros(4), 2, "std")


# ------------------------------------------------------------------------------------------------------------- rewards


def test_weighted_sum_skips_missing_rewards() -> None:
    rewards = {"accuracy": tensor([1, 0, math.nan, math.nan]), "format": tensor([0.5, math.nan, 1, math.nan])}
    combined = combine_rewards(rewards, {"format": 2.0})
    torch.testing.assert_close(combined, tensor([2, 0, 2, math.nan]), equal_nan=True, atol=0, rtol=0)
    torch.testing.assert_close(combine_rewards(rewards), tensor([1.5, 0, 1, math.nan]), equal_nan=True)


def test_ungraded_completion_is_left_out() -> None:
    rewards = combine_rewards({"accuracy": tensor([1, math.nan, 0, 1])})
    close(group_advantages(rewards, 4), tensor([1 / 3, 0, -2 / 3, 1 / 3]))


def test_overlong_penalty_falls_linearly() -> None:
    penalty = overlong_penalty(torch.tensor([1, 80, 81, 90, 100, 120]), 100, 20)
    close(penalty, tensor([0, 0, -0.05, -0.5, -1, -1]))
    assert not penalty[:2].signbit().any()


@given(st.lists(st.integers(0, 300), min_size=1), st.integers(1, 200), st.integers(1, 200))
def test_overlong_penalty_is_bounded_and_monotonic(lengths: list[int], budget: int, buffer: int) -> None:
    penalty = overlong_penalty(torch.tensor(sorted(lengths)), budget, min(buffer, budget))
    assert ((penalty >= -1) & (penalty <= 0)).all()
    assert (penalty.diff() <= 0).all()
