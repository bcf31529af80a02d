"""Curves as braille: any number of points in a few cells, with every peak kept. Pure functions, no Textual.

A cell has 2 × 4 pixels. Per pixel column the first, lowest, highest and last value are drawn (M4 aggregation), which
gives the same raster as drawing all values. A NaN breaks the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grpo_tui.model.curves import Mark

_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_STROKES = tuple(tuple(tuple(sum(bits[first : last + 1]) for last in range(4)) for first in range(4)) for bits in _BITS)
"""Per half of a cell, first and last of its four pixels: the bits of a stroke."""


@dataclass(frozen=True)
class View:
    """The part of the plane that a chart shows."""

    x_low: float
    x_high: float
    y_low: float
    y_high: float


class Bitmap:
    """A canvas of braille dots, ``columns`` × ``rows`` cells."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.width, self.height = columns * 2, rows * 4
        self.cells = [bytearray(columns) for _ in range(rows)]

    def dot(self, x: int, y: int) -> None:
        """Set a pixel; (0, 0) is the top left. Pixels outside the canvas are ignored."""
        if 0 <= x < self.width and 0 <= y < self.height:
            self.cells[y >> 2][x >> 1] |= _BITS[x & 1][y & 3]

    def stroke(self, x: int, y0: int, y1: int) -> None:
        """A vertical line."""
        top, bottom = max(0, min(y0, y1)), min(self.height - 1, max(y0, y1))
        if not 0 <= x < self.width or top > bottom:
            return
        column, strokes, first, last = x >> 1, _STROKES[x & 1], top >> 2, bottom >> 2
        if first == last:
            self.cells[first][column] |= strokes[top & 3][bottom & 3]
            return
        self.cells[first][column] |= strokes[top & 3][3]
        for row in range(first + 1, last):
            self.cells[row][column] |= strokes[0][3]
        self.cells[last][column] |= strokes[0][bottom & 3]

    def line(self, x0: int, y0: int, x1: int, y1: int) -> None:
        """Bresenham's line; a steep one, of which curves are made, as one stroke per pixel column."""
        dx, dy = abs(x1 - x0), abs(y1 - y0)
        sx, sy = (1 if x0 < x1 else -1), (1 if y0 < y1 else -1)
        if dy >= dx:
            begin = 0
            for number in range(dx + 1):
                end = dy + 1 if number == dx else -((2 * number + 1) * -dy // (2 * dx))
                self.stroke(x0 + sx * number, y0 + sy * begin, y0 + sy * (end - 1))
                begin = end
            return
        error = dx - dy
        while True:
            self.dot(x0, y0)
            if x0 == x1 and y0 == y1:
                return
            twice = 2 * error
            if twice >= -dy:
                error -= dy
                x0 += sx
            if twice <= dx:
                error += dx
                y0 += sy

    def keep_columns(self, pattern: Sequence[bool]) -> None:
        """Clear the pixel columns that a repeating pattern leaves out."""
        for column in range(self.columns):
            kept = [pattern[(2 * column + x) % len(pattern)] for x in (0, 1)]
            mask = sum(sum(_BITS[x]) for x in (0, 1) if kept[x])
            for row in self.cells:
                row[column] &= mask

    def text(self, row: int) -> str:
        """One row of cells as characters; an empty cell is a space."""
        return "".join(chr(0x2800 + bits) if bits else " " for bits in self.cells[row])


def view_of_marks(marks: Sequence[Mark], x_low: float, x_high: float) -> View:
    """The view of all values of the marks, with a small margin above and below."""
    if not marks:
        return View(x_low, x_high, 0.0, 1.0)
    y_low, y_high = min(mark.low for mark in marks), max(mark.high for mark in marks)
    if y_high - y_low < 1e-12 * max(abs(y_low), abs(y_high), 1e-280):  # practically constant
        spread = max(abs(y_low) * 0.1, 1e-280) if y_low else 1.0  # large enough that its inverse is finite
        return View(x_low, x_high, y_low - spread, y_high + spread)
    margin = (y_high - y_low) * 0.04
    return View(x_low, x_high, y_low - margin, y_high + margin)


def column_of(x: float, view: View, width: int) -> int:
    """The column, of ``width``, that shows an x; outside 0 … width - 1 it is not shown."""
    if x == view.x_high:
        return width - 1
    return math.floor((x - view.x_low) / (view.x_high - view.x_low) * width)


def pixel_of(y: float, view: View, height: int) -> int:
    """The pixel row, of ``height``, that shows a value."""
    return round((view.y_high - y) / (view.y_high - view.y_low) * (height - 1))


def row_of(y: float, view: View, rows: int) -> int:
    """The row of cells that shows a value."""
    return min(rows - 1, max(0, pixel_of(y, view, rows * 4) // 4))


def plot_marks(bitmap: Bitmap, view: View, marks: Sequence[Mark]) -> None:
    """Draw the values of each mark as a line from its lowest to its highest, joined to the next mark.

    With one mark per pixel column, this is the raster of all values: no peak is lost. The line breaks at a NaN.
    """
    previous: tuple[int, int] | None = None
    for mark in marks:
        x = column_of(mark.x, view, bitmap.width)
        if not 0 <= x < bitmap.width:
            previous = None if x < 0 else previous
            continue
        first = pixel_of(mark.first, view, bitmap.height)
        if previous is None or mark.broken:
            bitmap.dot(x, first)
        else:
            bitmap.line(*previous, x, first)
        if mark.low != mark.high:
            bitmap.line(x, pixel_of(mark.high, view, bitmap.height), x, pixel_of(mark.low, view, bitmap.height))
        previous = (x, pixel_of(mark.last, view, bitmap.height))


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """As :func:`ticks`, on an axis of logarithms: the logarithms of at most ``count`` round numbers."""
    for digits in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(low), math.floor(high) + 1) if high - low <= count else ()
        levels = [decade + math.log10(digit) for decade in decades for digit in digits]
        found = [level for level in levels if low <= level <= high]
        if 2 <= len(found) <= count:
            return found
    return ticks(low, high, count)


def ticks(low: float, high: float, count: int) -> list[float]:
    """At most ``count`` (≥ 2) round numbers in [low, high]; the two ends if no round ones fit."""
    span = high - low
    if not math.isfinite(span) or span <= 0:
        return [low]
    raw = span / max(1, count - 1)
    power = 10 ** math.floor(math.log10(raw))
    for factor in (1, 2, 2.5, 5, 10, 20):
        size = factor * power
        first = math.ceil(low / size - 1e-9)
        last = math.floor(high / size + 1e-9)
        found = [min(max(index * size, low), high) for index in range(first, last + 1)]
        if 2 <= len(found) <= count:
            return found
    return [low, high]
