"""The percentiles of a curve, and what a clipped axis leaves out."""

from __future__ import annotations

import statistics

from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.box.curves import Mark, left_out, percentiles


def marks_of(values: list[float], per_column: int = 1) -> list[Mark]:
    parts = [values[i : i + per_column] for i in range(0, len(values), per_column)]
    return [
        Mark(float(x), part[0], min(part), max(part), part[-1], False, len(part), sum(part))
        for x, part in enumerate(parts)
    ]


VALUES = st.lists(st.integers(-1000, 1000).map(float), min_size=1, max_size=300)


@given(VALUES, st.sampled_from([1, 2]))
def test_percentiles_are_those_of_the_values(values: list[float], per_column: int) -> None:
    low, high = percentiles(marks_of(values, per_column))
    if len(values) > 1:
        cuts = statistics.quantiles(values, n=100, method="inclusive")
        assert abs(low - cuts[0]) < 1e-6
        assert abs(high - cuts[98]) < 1e-6
    else:
        assert low == high == values[0]


@given(VALUES, st.integers(1, 50))
def test_percentiles_lie_within_the_extremes(values: list[float], per_column: int) -> None:
    low, high = percentiles(marks_of(values, per_column))
    assert min(values) <= low <= high <= max(values)


def test_a_spike_in_many_rows_is_left_out() -> None:
    values = [1.0] * 5_000
    values[2_500] = 900.0
    low, high = percentiles(marks_of(values, 50))
    assert (low, high) == (1.0, 1.0)


def test_what_is_left_out_is_counted() -> None:
    values = [0.0] * 100 + [5.0, 6.0, 7.0, -3.0]
    assert left_out(marks_of(values), -1, 1) == "3 points above, 1 below"
    assert left_out(marks_of([0.0, 9.0], 2), -1, 1) == "1 point above"
    assert left_out(marks_of([0.0, 9.0, 9.0], 3), -1, 1) == "≥1 point above", "of the third nothing is known"
    assert left_out(marks_of([8.0, 9.0, 9.0], 3), -1, 1) == "3 points above"
    assert left_out(marks_of([0.0]), -1, 1) == ""
