from __future__ import annotations

import random

from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo_tui.box.curves import Mark
from grpo_tui.kit.plot import Bitmap, View, column_of, plot_marks, row_of, view_of_marks


def marks_of(values: list[float | None]) -> list[Mark]:
    """One mark per value; None is a NaN."""
    marks, broken = [], False
    for x, value in enumerate(values):
        if value is not None:
            marks.append(Mark(float(x), value, value, value, value, broken))
        broken = value is None
    return marks


def drawn(values: list[float | None], columns: int = 20, rows: int = 5) -> Bitmap:
    bitmap = Bitmap(columns, rows)
    marks = marks_of(values)
    plot_marks(bitmap, view_of_marks(marks, 0.0, max(1.0, len(values) - 1)), marks)
    return bitmap


def lit(bitmap: Bitmap) -> int:
    return sum(bits.bit_count() for row in bitmap.cells for bits in row)


def test_one_value_is_one_dot() -> None:
    assert lit(drawn([0.5])) == 1


def test_constant_is_a_level_line_in_the_middle() -> None:
    bitmap = drawn([0.25] * 50)
    rows = [row for row in range(bitmap.rows) if any(bitmap.cells[row])]
    assert rows == [2]
    assert all(bitmap.cells[2])


def test_single_peak_survives() -> None:
    bitmap = Bitmap(80, 25)
    mark = Mark(61.8, 0.0, 0.0, 1.0, 0.0, False)
    marks = [Mark(float(x), 0.0, 0.0, 0.0, 0.0, False) for x in range(62)] + [mark]
    plot_marks(bitmap, view_of_marks(marks, 0.0, 100.0), marks)
    column = column_of(61.8, View(0, 100, 0, 1), bitmap.width) // 2
    assert sum(bool(row[column]) for row in bitmap.cells) >= 23, "from bottom to top, except for the margin"


def test_line_breaks_at_a_gap() -> None:
    assert lit(drawn([0, 0, 0, 1, 1, 1])) > lit(drawn([0, 0, None, 1, 1, 1]))


def test_without_values_there_is_a_view() -> None:
    assert view_of_marks([], 0, 10).y_high > view_of_marks([], 0, 10).y_low


def test_values_outside_the_range_are_not_drawn() -> None:
    marks = marks_of([0.0, 1.0, 0.0, 1.0, 0.0])
    inside, all_of_them = Bitmap(20, 5), Bitmap(20, 5)
    view = view_of_marks(marks, 1.0, 2.0)
    plot_marks(inside, view, marks[1:3])
    plot_marks(all_of_them, view, marks)
    assert inside.cells == all_of_them.cells


def bresenham(bitmap: Bitmap, x0: int, y0: int, x1: int, y1: int) -> None:
    """Bresenham's line, pixel by pixel."""
    dx, dy = abs(x1 - x0), -abs(y1 - y0)
    error = dx + dy
    while True:
        bitmap.dot(x0, y0)
        if (x0, y0) == (x1, y1):
            return
        twice = 2 * error
        if twice >= dy:
            error += dy
            x0 += 1 if x0 < x1 else -1
        if twice <= dx:
            error += dx
            y0 += 1 if y0 < y1 else -1


PIXELS = st.integers(-6, 30)


@given(PIXELS, PIXELS, PIXELS, PIXELS)
@settings(max_examples=500)
def test_a_line_is_that_of_bresenham(x0: int, y0: int, x1: int, y1: int) -> None:
    """Wherever it begins and ends, inside the canvas or not."""
    line, pixels = Bitmap(10, 6), Bitmap(10, 6)
    line.line(x0, y0, x1, y1)
    bresenham(pixels, x0, y0, x1, y1)
    assert line.cells == pixels.cells


@given(st.floats(-1e9, 1e9), st.floats(1e-3, 1e9), st.integers(2, 400), st.data())
def test_columns_are_those_of_the_box(low: float, span: float, width: int, data: st.DataObject) -> None:
    """The middle of the box's column i is drawn in column i."""
    high = low + span
    index = data.draw(st.integers(0, width - 1))
    assert column_of(low + (index + 0.5) * (high - low) / width, View(low, high, 0, 1), width) == index
    assert column_of(high, View(low, high, 0, 1), width) == width - 1


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.none() | st.floats(-1e300, 1e300, exclude_min=True, exclude_max=True), min_size=1, max_size=300),
    st.integers(2, 40),
    st.integers(1, 12),
)
@example([2.225073858507203e-309], 2, 1)
def test_everything_is_drawn_inside_the_canvas(values: list[float | None], columns: int, rows: int) -> None:
    bitmap = drawn(values, columns, rows)
    assert any(value is not None for value in values) <= lit(bitmap) <= bitmap.width * bitmap.height
    assert all(0 <= row_of(mark.low, view_of_marks([mark], 0, 1), rows) < rows for mark in marks_of(values))


def test_noise_fills_its_band() -> None:
    dice = random.Random(0)
    bitmap = drawn([dice.random() for _ in range(5000)])
    assert lit(bitmap) > 0.8 * bitmap.width * bitmap.height
