"""Tables as CSV. Of metrics at full resolution: which requests give every step of a range, and their replies as lines.

The log stays on the box. A ``series`` request with as many columns as steps has one step in each column. No Textual.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from remote.protocol.logs import MAX_CELLS, MAX_WIDTH, UNREADABLE, Columns

FORMULA = ("=", "+", "-", "@", "\t")
"""A cell that begins so is a formula to a spreadsheet."""


def table_of(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A whole table."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_value, head))
    writer.writerows(map(_value, row) for row in rows)
    return out.getvalue()


def _value(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return _text(value) if isinstance(value, str) and value != "-Infinity" else value


def pages(metrics: Sequence[str], first: int, last: int) -> Iterator[tuple[int, int]]:
    """First and last step of each request for the steps of a range."""
    width = min(MAX_WIDTH, MAX_CELLS // max(1, len(metrics)))
    for start in range(first, last + 1, width):
        yield start, min(start + width - 1, last)


def request_of(run: str, metrics: Sequence[str], first: int, last: int) -> dict[str, Any]:
    """The parameters of the ``series`` request with a column for each step of a page."""
    return {
        "run": run, "metrics": list(metrics), "x": "step", "low": first, "high": last, "width": last - first + 1,
    }  # fmt: skip


def header_of(metrics: Sequence[str]) -> str:
    """The first line."""
    return _line(["step", *map(_text, metrics)])


def cell_of(text: str) -> str:
    """A text as one cell of a line."""
    return _line([_text(text)]).removesuffix("\n")


def _text(text: str) -> str:
    return f"'{text}" if text.startswith(FORMULA) else text


def lines_of(reply: Mapping[str, Any], first: int) -> Iterator[str]:
    """One line a step that has a value; a metric that a step lacks is empty, NaN and infinities are ``NaN``.

    Raises ValueError for a metric that cannot be read.
    """
    columns: list[Columns] = []
    for row in reply["series"]:
        if UNREADABLE in row:
            raise ValueError(f"{row['metric']}: {row[UNREADABLE]}")
        columns.append(row["columns"])
    for place in range(reply["width"]):
        cells = [_cell(each, place) for each in columns]
        if any(cells):
            yield _line([str(first + place), *cells])


def steps_between(low: float, high: float) -> tuple[int, int]:
    """First and last step of a range."""
    return max(0, math.ceil(low - 1e-9)), math.floor(high + 1e-9)


def _cell(columns: Columns, place: int) -> str:
    if not columns.count[place]:
        return "NaN" if columns.gaps[place] else ""
    value = columns.last[place]  # of two rows with one step, the later one
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)


def _line(cells: Sequence[str]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(cells)
    return out.getvalue()
