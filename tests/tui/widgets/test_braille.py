from __future__ import annotations

import math
import random
import time
from array import array

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tui.widgets.braille import Bitmap, gap_columns, plot, ticks, view_of


def drawn(steps: list[float], values: list[float], gaps: list[float] = [], columns: int = 20, rows: int = 5) -> Bitmap:  # noqa: B006
    bitmap = Bitmap(columns, rows)
    view = view_of(steps, values, gaps)
    assert view is not None
    plot(bitmap, view, steps, values, gaps)
    return bitmap


def lit(bitmap: Bitmap) -> int:
    return sum(bits.bit_count() for row in bitmap.cells for bits in row)


def test_no_points_no_view() -> None:
    assert view_of([], []) is None


def test_one_point_is_one_dot() -> None:
    assert lit(drawn([7], [0.5])) == 1


def test_constant_is_a_level_line_in_the_middle() -> None:
    bitmap = drawn(list(range(50)), [0.25] * 50)
    rows = [row for row in range(bitmap.rows) if any(bitmap.cells[row])]
    assert rows == [2]
    assert all(bitmap.cells[2])


def test_single_peak_survives() -> None:
    steps, values = array("d", range(100_000)), array("d", [0.0] * 100_000)
    values[61_803] = 1.0
    began = time.process_time()
    bitmap = Bitmap(80, 25)
    view = view_of(steps, values)
    assert view is not None
    plot(bitmap, view, steps, values)
    assert time.process_time() - began < 1.0  # ~10 ms
    column = round(61_803 / 99_999 * (bitmap.width - 1)) // 2
    assert sum(bool(row[column]) for row in bitmap.cells) >= 23, "from bottom to top, except for the margin"


def test_line_breaks_at_a_gap() -> None:
    whole = drawn([0, 10, 20, 30], [0, 0, 1, 1])
    broken = drawn([0, 10, 20, 30], [0, 0, 1, 1], [15])
    assert lit(broken) < lit(whole)
    view = view_of([0, 10, 20, 30], [0, 0, 1, 1], [15])
    assert view is not None
    assert gap_columns(broken, view, [15]) == {10}


def test_only_nan_still_has_a_view() -> None:
    view = view_of([], [], [4.0])
    assert view is not None
    assert math.isfinite(view.y_high - view.y_low)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(-1e300, 1e300, exclude_min=True, exclude_max=True), min_size=1, max_size=300),
    st.lists(st.integers(0, 300), max_size=20),
    st.integers(2, 40),
    st.integers(1, 12),
)
@example([2.225073858507203e-309], [], 2, 1)
def test_everything_is_drawn_inside_the_canvas(values: list[float], gaps: list[int], columns: int, rows: int) -> None:
    gap_steps = sorted({gap + 0.5 for gap in gaps})
    bitmap = drawn([float(step) for step in range(len(values))], values, gap_steps, columns, rows)
    assert 1 <= lit(bitmap) <= bitmap.width * bitmap.height


@given(st.floats(-1e12, 1e12), st.floats(1e-9, 1e12), st.integers(2, 8))
@example(30.0, 1e-9, 2)
def test_ticks_are_few_and_in_range(low: float, span: float, count: int) -> None:
    high = low + span
    found = ticks(low, high, count)
    assert 1 <= len(found) <= max(2, count)
    assert all(low - 1e-6 * span <= tick <= high + 1e-6 * span for tick in found)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.07, 0.93), (-3, 200), (1e-7, 3e-7), (5, 5000)])
def test_ticks_are_round(low: float, high: float) -> None:
    for tick in ticks(low, high, 5):
        assert len(f"{tick:.6e}".partition("e")[0].lstrip("-").rstrip("0").replace(".", "")) <= 3


def test_noise_fills_its_band() -> None:
    dice = random.Random(0)
    bitmap = drawn([float(x) for x in range(5000)], [dice.random() for _ in range(5000)])
    assert lit(bitmap) > 0.8 * bitmap.width * bitmap.height
