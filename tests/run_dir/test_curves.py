"""What the line of a curve is: its values, or a mean that is neither early nor late."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.run_dir.curves import LEVELS, LIGHT, RAW, STRONG, centered_means, largest_changes, mean_over

COLUMN = st.lists(st.floats(-1e6, 1e6), max_size=5)


def test_values_are_the_line_until_they_are_dense() -> None:
    assert [mean_over(RAW, count, 100) for count in (1, 200, 201, 1_000)] == [0, 0, 5, 20]
    assert [mean_over(LIGHT, count, 100) for count in (1, 12, 20, 400, 1_000)] == [0, 6, 10, 10, 25]
    assert [mean_over(STRONG, count, 100) for count in (40, 60, 400, 1_000)] == [20, 30, 40, 100]
    assert mean_over(RAW, 5, 0) == 0  # not laid out yet


@given(st.lists(COLUMN, max_size=30), st.floats(0.1, 60))
def test_means_are_those_of_the_values_around(columns: list[list[float]], over: float) -> None:
    """Each value has the width 1; those of a column are equal, as far as the mean can know."""
    found = centered_means([math.fsum(each) for each in columns], [len(each) for each in columns], over)
    density = [math.fsum(each) / len(each) for each in columns for _ in each]
    start = 0
    for column, mean in zip(columns, found, strict=True):
        middle = start + len(column) / 2
        start += len(column)
        if not column:
            assert mean == 0
            continue
        half = max(len(column) / 2, min(over / 2, middle, len(density) - middle))
        parts = [max(0.0, min(i + 1, middle + half) - max(i, middle - half)) for i in range(len(density))]
        expected = math.fsum(value * part for value, part in zip(density, parts, strict=True)) / (2 * half)
        assert mean == pytest.approx(expected, rel=1e-9, abs=1e-6)


@pytest.mark.parametrize("smoothing", LEVELS)
@pytest.mark.parametrize(("count", "columns"), [(60, 60), (400, 60), (2_000, 120)])
def test_a_fall_is_where_it_was(smoothing: str, count: int, columns: int) -> None:
    """A curve that falls at once crosses the middle in the column of the fall: no smoothing misdates it."""
    values = [1.84 if i < 0.7 * count else 0.0 for i in range(count)]
    cells = [values[count * i // columns : count * (i + 1) // columns] for i in range(columns)]
    means = centered_means(
        [sum(cell) for cell in cells], [len(cell) for cell in cells], mean_over(smoothing, count, columns)
    )
    crossed = next(i for i, mean in enumerate(means) if mean < 0.92)
    assert abs(crossed - 0.7 * columns) <= 1
    assert means[0] == 1.84
    assert means[-1] == 0.0


def test_a_spike_of_any_size_leaves_the_others() -> None:
    """No running sum: what is added to 1e30 and taken away again is lost."""
    sums = [1.0] * 50
    sums[10] = 1e30
    assert centered_means(sums, [1.0] * 50, 4)[20:] == [1.0] * 30


def test_the_largest_drops_come_first_each_where_the_curve_falls() -> None:
    values = [1.8 + 0.01 * (-1) ** i for i in range(40)]  # 0–39, then a small drop, a gradual large one, and a rise
    values += [1.5 + 0.01 * (-1) ** i for i in range(40)]
    values += [1.0, 0.6, 0.3, *(0.01 * (-1) ** i for i in range(40)), *(0.9 + 0.01 * (-1) ** i for i in range(40))]
    drops = largest_changes(values, rises=False)
    assert [change.row for change in drops] == [80, 40]
    assert (drops[1].before, drops[1].after) == pytest.approx((1.8, 1.5), abs=0.02)
    (rise,) = largest_changes(values, rises=True)
    assert (rise.row, rise.before, rise.after) == pytest.approx((123, 0.0, 0.9), abs=0.02)


def test_a_single_bad_value_is_no_drop_of_a_level() -> None:
    values = [1.0 + 0.01 * (-1) ** i for i in range(60)]
    values[30] = 0.0
    assert largest_changes(values, rises=False) == []
    assert largest_changes([1.0] * 60, rises=False) == largest_changes([], rises=False) == []


@given(st.lists(st.floats(-1e9, 1e9), max_size=60))
def test_changes_are_ordered_and_apart(values: list[float]) -> None:
    for rises in (False, True):
        found = largest_changes(values, rises=rises)
        assert all((change.after > change.before) is rises or change.after == change.before for change in found)
        assert len({change.row for change in found}) == len(found)
