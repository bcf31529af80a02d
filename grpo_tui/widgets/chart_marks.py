"""Marks as a chart draws them: on a logarithmic axis, cut off at the ends of a clipped one. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence

from grpo_tui.model.curves import Mark
from grpo_tui.model.formatting import metric_value
from grpo_tui.widgets.braille import View, column_of, row_of


def exponents(marks: Sequence[Mark]) -> list[Mark]:
    """Marks on a logarithmic axis; those without a positive value are left out."""
    positive = [mark for mark in marks if mark.high > 0]
    floor = min((value for mark in positive for value in mark[1:6] if value > 0), default=1.0)
    found = []
    for mark in positive:
        first, low, high, last, smooth = (math.log10(max(value, floor)) for value in mark[1:6])
        found.append(Mark(mark.x, first, low, high, last, smooth, mark.broken, mark.rows))
    return found


def cut_off(marks: Sequence[Mark], view: View) -> list[Mark]:
    """Marks whose values beyond the view are just outside of it: a line to them leaves the chart."""
    margin = (view.y_high - view.y_low) / 2
    least, most = view.y_low - margin, view.y_high + margin
    found = []
    for mark in marks:
        first, low, high, last, smooth = (min(most, max(least, value)) for value in mark[1:6])
        found.append(Mark(mark.x, first, low, high, last, smooth, mark.broken, mark.rows))
    return found


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
