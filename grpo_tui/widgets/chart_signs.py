"""Signs of events below a curve, what they mean, and the gaps of a time axis. Pure functions."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from textual.content import Content

from grpo_train.run_dir.display import duration
from grpo_tui.model.chart_events import NOT_FINITE, SEVERAL, Gap, Placed, sign_of
from grpo_tui.model.curves import Mark
from grpo_tui.model.run_events import CRASH, WORDS, RunEvent
from grpo_tui.widgets.braille import Bitmap, View, column_of, row_of

BAND = "░"


class Sign(NamedTuple):
    """The sign of a column."""

    text: str
    events: list[RunEvent]

    @property
    def is_bad(self) -> bool:
        return self.text in (CRASH, NOT_FINITE)


def signs_of(placed: Iterable[Placed], not_finite: Iterable[float], view: View, columns: int) -> dict[int, Sign]:
    """The sign of each column that has one. NaN gives way to a crash only."""
    by_column: dict[int, list[RunEvent]] = {}
    for x, event in placed:
        if 0 <= (column := column_of(x, view, columns)) < columns:
            by_column.setdefault(column, []).append(event)
    signs = {column: Sign(sign_of(events), events) for column, events in by_column.items()}
    for column in {column_of(x, view, columns) for x in not_finite}:
        if 0 <= column < columns and (column not in signs or signs[column].text != CRASH):
            signs[column] = Sign(NOT_FINITE, by_column.get(column, []))
    return signs


def signs_at(results: Mapping[Placed, Mark], view: View, columns: int, rows: int) -> Iterator[tuple[int, int, Sign]]:
    """Row, column and sign of evaluations at the height of their results; one that a clipped axis leaves out is at its
    end."""
    for one, mark in results.items():
        column, row = column_of(one.x, view, columns), row_of(mark.last, view, rows)
        if 0 <= column < columns:
            yield min(rows - 1, max(0, row)), column, Sign(one.event.sign, [one.event])


def lowest_free(column: int, *bitmaps: Bitmap) -> int:
    """The lowest row in which no curve has a dot in a column; the last one without such a row."""
    rows = range(bitmaps[0].rows - 1, -1, -1)
    return next((row for row in rows if not any(one.cells[row][column] for one in bitmaps)), rows[0])


@functools.lru_cache(64)
def legend(signs: frozenset[str], room: int) -> Content:
    """``S stop R resume``, as far as there is room."""
    words = {**WORDS, SEVERAL: "several", NOT_FINITE: "NaN or Inf"}
    parts: list[Content] = []
    for sign, word in words.items():
        part = Content.from_markup("[b]$sign[/] [$text-muted]$word[/]", sign=sign, word=word)
        if sign in signs and sum(one.cell_length + 2 for one in parts) + part.cell_length <= room:
            parts.append(part)
    return Content("  ").join(parts)


def bands_of(gaps: Sequence[Gap], view: View, columns: int) -> dict[int, str]:
    """Column to character of the bands of gaps, each with its label where that fits."""
    cells: dict[int, str] = {}
    for gap in gaps:
        start = max(0, column_of(gap.low, view, columns) + 1)
        end = min(columns, column_of(gap.high, view, columns))
        width = end - start
        if width < 1:
            continue
        word = "stopped" if gap.has_end else "no step for"
        labels = (f" {word} {duration(gap.seconds)} ", f" {duration(gap.seconds)} ", "")
        label = next(text for text in labels if len(text) + 2 <= width or not text)
        cells.update(zip(range(start, end), label.center(width, BAND), strict=True))
    return cells
