"""What time on a box costs."""

from __future__ import annotations

import math

import pytest

from grpo_train.history.cost import Prices, dollars, gain_of

H = 3600.0


def test_hours_cost_the_price() -> None:
    assert dollars(2.49, 2 * H) == pytest.approx(4.98)


def test_each_part_of_a_span_has_its_price() -> None:
    prices = Prices.of({0.0: 2.0, 10 * H: 1.0, 12 * H: 4.0})
    assert prices is not None
    assert prices.cost([(9 * H, 13 * H)]) == pytest.approx(2 + 2 * 1 + 4)
    assert prices.cost([(9 * H, 9.5 * H), (12.5 * H, 13 * H)]) == pytest.approx(1 + 2)
    assert (prices.at(10 * H - 1), prices.at(10 * H), prices.at(-1)) == (2.0, 1.0, 2.0)


def test_the_first_price_holds_before_its_day() -> None:
    prices = Prices.of({100 * H: 3.0})
    assert prices is not None
    assert prices.cost([(0, H)]) == 3.0
    assert Prices.of({}) is None


def row(step: int, accuracy: float, half: float = 0.03) -> dict[str, float]:
    return {"step": step, "accuracy": accuracy, "ci_low": accuracy - half, "ci_high": accuracy + half}


def test_a_point_has_an_interval() -> None:
    gain = gain_of("gsm8k", row(0, 0.4), row(20, 0.6))
    assert gain is not None
    assert (gain.gained, gain.first_step, gain.last_step) == (pytest.approx(0.2), 0, 20)
    assert gain.low == pytest.approx(0.2 - math.hypot(0.03, 0.03))
    assert gain.high == pytest.approx(0.2 + math.hypot(0.03, 0.03))
    point, low, high = gain.dollars_per_point(10.0) or (0, 0, 0)
    assert (point, low, high) == (
        pytest.approx(0.5), pytest.approx(10 / (100 * gain.high)), pytest.approx(10 / (100 * gain.low)),
    )  # fmt: skip


def test_an_uncertain_gain_may_cost_any_amount() -> None:
    gain = gain_of("gsm8k", row(0, 0.4), row(20, 0.41))
    assert gain is not None
    assert (gain.dollars_per_point(1.0) or ())[2] == math.inf


def test_no_gain_has_no_price() -> None:
    gain = gain_of("gsm8k", row(0, 0.4), row(20, 0.4))
    assert gain is not None
    assert gain.dollars_per_point(1.0) is None
    assert gain_of("gsm8k", {"step": 0, "accuracy": 0.4}, row(20, 0.4)) is None
