"""Effective sample size: values computed by hand, bounds and overflow."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.algorithm.effective_sample_size import effective_sample_size

# logps - old_logps of the 10 tokens of golden/losses.json, by completion.
LOG_RATIOS = [[0.1, -0.3, 0.0], [0.5, -0.05], [-0.05, 0.0, 0.4, -0.5], [0.3]]
TOKENS = torch.tensor([ratio for row in LOG_RATIOS for ratio in row], dtype=torch.float64)
SEQUENCES = torch.tensor([sum(row) for row in LOG_RATIOS], dtype=torch.float64)

log_weights = st.lists(st.floats(-1e4, 1e4), min_size=1, max_size=50)


def ratio(values: list[float], clip: tuple[float, float] | None = None) -> float:
    return effective_sample_size(torch.tensor(values, dtype=torch.float64), clip).item()


def test_golden_values() -> None:
    assert effective_sample_size(TOKENS).item() == pytest.approx(0.9251614161655543, abs=1e-10)
    assert effective_sample_size(SEQUENCES).item() == pytest.approx(0.9282686777451213, abs=1e-10)
    assert effective_sample_size(SEQUENCES, (0.8, 1.2)).item() == pytest.approx(0.9695458007520733, abs=1e-10)


@given(log_weights)
def test_between_one_nth_and_one(values: list[float]) -> None:
    assert 1 / len(values) - 1e-12 <= ratio(values) <= 1


@given(st.floats(-1e4, 1e4), st.integers(1, 100))
def test_equal_weights_give_one(value: float, count: int) -> None:
    assert ratio([value] * count) == 1


@given(log_weights, st.floats(-1e4, 1e4))
def test_a_common_factor_changes_nothing(values: list[float], shift: float) -> None:
    assert ratio([value + shift for value in values]) == pytest.approx(ratio(values), abs=1e-9)


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=50))
def test_matches_the_plain_formula(values: list[float]) -> None:
    weights = [math.exp(value) for value in values]
    plain = sum(weights) ** 2 / (len(weights) * sum(weight**2 for weight in weights))
    assert ratio(values) == pytest.approx(plain, abs=1e-12)


@given(log_weights, st.floats(0.01, 1), st.floats(1, 100))
def test_clip_clamps_the_weights(values: list[float], low: float, high: float) -> None:
    clamped = [min(max(value, math.log(low)), math.log(high)) for value in values]
    assert ratio(values, (low, high)) == pytest.approx(ratio(clamped), abs=1e-12)


@pytest.mark.parametrize("scale", [1e4, -1e4])
def test_huge_log_weights_do_not_overflow(scale: float) -> None:
    assert ratio([scale, scale, scale - 1]) == pytest.approx(ratio([0, 0, -1]), abs=1e-9)


def test_dominating_weight_gives_one_nth() -> None:
    assert ratio([1e4, 0, -1e4, 0]) == 1 / 4


def test_zero_weight_counts_as_a_sample() -> None:
    assert ratio([0.0, 0.0, -math.inf, -math.inf]) == 1 / 2
    assert ratio([0.0, -math.inf], (0, 2)) == 1 / 2
    assert ratio([0.0, -math.inf], (1, math.inf)) == 1


@pytest.mark.parametrize("clip", [None, (0.8, 1.2)])
@pytest.mark.parametrize("values", [[], [math.nan, 0.0], [math.inf, 0.0]])
def test_undefined_is_nan(values: list[float], clip: tuple[float, float] | None) -> None:
    assert math.isnan(ratio(values, clip))


def test_all_zero_weights_are_nan() -> None:
    assert math.isnan(ratio([-math.inf, -math.inf]))


def test_returns_a_float64_scalar_without_gradient() -> None:
    result = effective_sample_size(TOKENS.view(2, 5).float().requires_grad_())
    assert (result.shape, result.dtype, result.requires_grad) == (torch.Size([]), torch.float64, False)
    assert result.item() == pytest.approx(0.9251614161655543, abs=1e-6)


@pytest.mark.parametrize("clip", [(1.2, 0.8), (-1.0, 1.0), (0.0, 0.0), (math.nan, 1.0)])
def test_invalid_clip_is_an_error(clip: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="clip is"):
        effective_sample_size(TOKENS, clip)
