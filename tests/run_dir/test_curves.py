"""What the line of a curve is: its values, or a mean that is neither early nor late; and what is on its axes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from grpo_train.run_dir.curves import (
    LEVELS,
    LIGHT,
    RAW,
    STRONG,
    apart,
    centered_means,
    largest_changes,
    log_ticks,
    mean_over,
    ticks,
    time_labels,
    time_ticks,
)

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


# axes ----------------------------------------------------------------------------------------------------------------


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(2, 8))
@example(30.0, 1e-9, 2)
def test_ticks_are_few_even_and_in_range(low: float, span: float, count: int) -> None:
    high = low + span
    found = ticks(low, high, count)
    assert 1 <= len(found) <= max(2, count)
    assert all(low <= tick <= high for tick in found)
    gaps = [after - before for before, after in pairwise(found)]
    slack = 1e-6 * span + 1e-15 * max(abs(low), abs(high))
    assert all(abs(gap - gaps[0]) <= slack for gap in gaps)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.07, 0.93), (-3, 200), (1e-7, 3e-7), (5, 5000)])
def test_ticks_are_round(low: float, high: float) -> None:
    for tick in ticks(low, high, 5):
        assert len(f"{tick:.6e}".partition("e")[0].lstrip("-").rstrip("0").replace(".", "")) <= 3


@given(st.floats(-300, 300), st.floats(0.01, 300), st.integers(2, 8))
def test_ticks_of_several_decades_are_decades(low: float, span: float, count: int) -> None:
    found = log_ticks(low, low + span, count)
    assert 1 <= len(found) <= count
    assert all(low <= level <= low + span for level in found)
    if span > count:
        assert all(level == int(level) for level in found)


def test_ticks_make_room_for_the_extremes() -> None:
    assert apart([0, 5, 9, 10], [0.5, 10], 1) == [5, 9]


ZONES = ("UTC", "America/New_York", "Europe/Berlin", "Asia/Kathmandu", "Australia/Lord_Howe", "America/St_Johns")


@contextmanager
def zone(name: str) -> Iterator[None]:
    """This process in another time zone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", name)
        time.tzset()
        try:
            yield
        finally:
            patch.undo()
            time.tzset()


def at(text: str, name: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(name)).timestamp()


def test_midnight_has_its_date() -> None:
    for name in ZONES:
        with zone(name):
            places = time_ticks(at("2026-11-28T23:42", name), at("2026-11-29T00:15", name), 4)
            assert time_labels(places) == ["Nov 28 23:50", "Nov 29 00:00", "00:10"], name
            places = time_ticks(at("2026-11-28T09:00", name), at("2026-11-28T17:30", name), 6)
            assert time_labels(places) == ["10:00", "12:00", "14:00", "16:00"], name
            places = time_ticks(at("2026-11-28T15:00", name), at("2026-11-29T18:00", name), 6)
            assert time_labels(places) == ["Nov 28 18:00", "Nov 29 00:00", "06:00", "12:00", "18:00"], name
            ends = at("2026-11-27T11:47", name), at("2026-12-02T11:47", name)
            days = ["Nov 28", "Nov 29", "Nov 30", "Dec 1", "Dec 2"]
            labels = time_labels([ends[0], *time_ticks(*ends, 6), ends[1]])
            assert labels == ["Nov 27 11:47", *days, "11:47"], name


def test_a_clock_that_is_put_forward_or_back_has_true_times() -> None:
    name = "America/New_York"
    with zone(name):
        spring = time_ticks(at("2026-03-08T00:30", name), at("2026-03-08T05:30", name), 6)
        assert time_labels(spring) == ["01:00", "03:00", "04:00", "05:00"]
        autumn = time_ticks(at("2026-11-01T00:30", name), at("2026-11-01T04:30", name), 6)
        assert time_labels(autumn) == ["01:00", "02:00", "03:00", "04:00"]
        assert [after - before for before, after in pairwise(autumn)] == [7200, 3600, 3600]


@given(
    st.sampled_from(ZONES),
    st.datetimes(datetime(2000, 1, 1), datetime(2037, 1, 1)),
    st.floats(30, 3e8),
    st.integers(2, 12),
)
def test_times_are_even_on_the_clock(name: str, start: datetime, span: float, count: int) -> None:
    with zone(name):
        low = start.timestamp()
        found = time_ticks(low, low + span, count)
        assert 1 <= len(found) <= count
        assert all(low <= place <= low + span for place in found)
        clock = [datetime.fromtimestamp(place) for place in found]
        gaps = {after - before for before, after in pairwise(clock)}
        assert len(gaps) <= 1 or max(gaps) - min(gaps) <= max(timedelta(hours=1), min(gaps)), "a skipped hour"
        labels = zip(time_labels(found), (when.date() for when in clock), strict=True)
        assert len(set(labels)) == len(found)


@given(st.floats(-1e15, 1e15), st.floats(1e-3, 1e15))
def test_no_time_is_too_strange(low: float, span: float) -> None:
    assert all(time_labels(time_ticks(low, low + span, 5)))
