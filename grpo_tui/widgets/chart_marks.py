"""The lines of a chart: their marks on its axes, markers, letters, the value at the crosshair. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from grpo_tui.charts import DASHED, DOTTED, RUN_LOOKS, RunLook
from grpo_tui.model.curves import Mark
from grpo_tui.model.formatting import metric_value
from grpo_tui.widgets.braille import Bitmap, View, column_of, plot_marks, row_of

MARKED_EVERY = 16
"""Columns between two markers of a line."""
PATTERNS = {DASHED: (True, True, True, True, True, True, False, False), DOTTED: (True, True, False, False)}
"""Which pixel columns of a line are drawn."""


class RunLine(NamedTuple):
    """The line of a run."""

    marks: Sequence[Mark]
    """Of the moving average, or of the values."""
    band: Sequence[Mark] = ()
    """The values whose range is drawn below the line."""
    look: RunLook | None = None
    """Of one of several runs: its color, marker, pattern and letter. None for the only run."""
    name: str = ""
    """Of the run."""
    end: str = ""
    """What is written behind the last mark."""
    is_patterned: bool = False
    """Whether gaps of the look's pattern may be left out: a peak of raw values is always drawn."""

    def changed(self, change: Callable[[Sequence[Mark]], Sequence[Mark]]) -> RunLine:
        """The line with other marks: scaled, cut off, or fewer of them."""
        return self._replace(marks=change(self.marks), band=change(self.band))

    @property
    def extent(self) -> Sequence[Mark]:
        """The marks that a chart must have room for."""
        return self.band or self.marks

    def bitmaps(self, view: View, columns: int, rows: int) -> tuple[Bitmap, Bitmap]:
        """The line, and its band."""
        line, band = Bitmap(columns, rows), Bitmap(columns, rows)
        plot_marks(line, view, self.marks)
        plot_marks(band, view, self.band)
        if self.is_patterned and self.look is not None and (pattern := PATTERNS.get(self.look.line)):
            line.keep_columns(pattern)
        return line, band

    def markers(self, view: View, columns: int, rows: int) -> Iterator[tuple[int, int, str]]:
        """Row, column and character of the markers on the line."""
        if self.look is None:
            return
        places = {column_of(mark.x, view, columns): mark for mark in self.marks}
        for column in range(MARKED_EVERY // 2 + 5 * RUN_LOOKS.index(self.look) % MARKED_EVERY, columns, MARKED_EVERY):
            if (mark := places.get(column)) is not None:
                yield row_of(mark.last, view, rows), column, self.look.marker

    def ending(
        self, view: View, columns: int, rows: int, taken: set[tuple[int, int]]
    ) -> Iterator[tuple[int, int, str]]:
        """Row, column and character of the text at the end. Its cells are added to those that are ``taken``."""
        if not self.marks or not self.end:
            return
        last = self.marks[-1]
        column = min(max(0, column_of(last.x, view, columns) + 1), columns - len(self.end))
        middle = row_of(last.last, view, rows)
        for row in (middle + way * distance for distance in range(rows) for way in (-1, 1)):
            places = {(row, column + i) for i in range(len(self.end))}
            if 0 <= row < rows and not places & taken:
                taken |= places
                yield from ((row, column + i, character) for i, character in enumerate(self.end))
                return


def only_line(marks: Sequence[Mark], is_averaged: bool) -> RunLine:
    """The line of the only run of a chart: its values, or their moving average over the band of their range."""
    return RunLine(averages(marks), marks) if is_averaged else RunLine(marks)


def scaled(marks: Sequence[Mark], is_log: bool) -> Sequence[Mark]:
    """Marks on an axis: of a logarithmic one exponents of ten, without the marks that have no positive value."""
    if not is_log:
        return marks
    positive = [mark for mark in marks if mark.high > 0]
    floor = min((value for mark in positive for value in mark[1:6] if value > 0), default=1.0)
    return [_changed(mark, lambda value: math.log10(max(value, floor))) for mark in positive]


def cut_off(marks: Sequence[Mark], view: View) -> list[Mark]:
    """Marks whose values beyond the view are just outside of it: a line to them leaves the chart."""
    margin = (view.y_high - view.y_low) / 2
    least, most = view.y_low - margin, view.y_high + margin
    return [_changed(mark, lambda value: min(most, max(least, value))) for mark in marks]


def _changed(mark: Mark, change: Callable[[float], float]) -> Mark:
    first, low, high, last, smooth = map(change, mark[1:6])
    return Mark(mark.x, first, low, high, last, smooth, mark.broken, mark.rows)


def averages(marks: Sequence[Mark]) -> list[Mark]:
    """Marks of the moving average only."""
    return [mark._replace(first=mark.smooth, low=mark.smooth, high=mark.smooth, last=mark.smooth) for mark in marks]


def point(
    value: float | None, x: float | None, view: View, columns: int, rows: int, *, is_log: bool
) -> tuple[int, dict[int, str]]:
    """A value at the crosshair: its row, and by column the characters of a point with the number beside it."""
    if value is None or x is None or not math.isfinite(value) or (is_log and value <= 0):
        return -1, {}
    y, place = math.log10(value) if is_log else value, column_of(x, view, columns)
    if not (view.y_low <= y <= view.y_high and 0 <= place < columns):
        return -1, {}
    number = metric_value(value)
    text, start = (f"●{number}", place) if place + len(number) < columns else (f"{number}●", place - len(number))
    return row_of(y, view, rows), dict(zip(range(start, place + len(text)), text, strict=False))
