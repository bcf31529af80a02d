"""A table with a column per run, in a width: one that is too narrow for it keeps the key and the pinned run in place,
and shows the other runs from about the current one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from grpo_tui.model.formatting import shortened
from grpo_tui.widgets.lines_panel import Palette

GAP = 2
WIDEST = 32
"""Cells of a value; a longer one is cut in the middle."""
SIGNS = len(" ‹9 9›")
NARROWED = 16
"""The same in a table that is too wide."""
KEY_LEAST = 20
"""Cells that are left to the keys in such a table."""

Table = Sequence[Sequence[Text]]


def run_table(
    table: Table, width: int, palette: Palette, pinned: int, current: int, groups: Sequence[Sequence[int]] = ()
) -> list[Text]:
    """Lines of a table, whose first row is its header.

    ``pinned`` and ``current`` are runs by their place. ``groups`` has the columns of each run but the pinned one, in
    order; by default the column of its place. A table that fits has its columns in their order; one that does not is
    turned, without ``groups``, if it has room with a line per run.
    """
    count = len(table[0])
    widths = _widths(table, count)
    if fits(table, width):
        return _lines(table, widths, range(count))
    if not groups and (turned := _turned(table)):
        across = _widths(turned, len(turned[0]))
        if _total(across, range(len(across))) <= width:
            return _lines(turned, across, range(len(across)))
    others = list(groups) or [[place + 1] for place in range(count - 1) if place != pinned]
    return _windowed(table, widths, width, palette, pinned, current, others)


def fits(table: Table, width: int) -> bool:
    """Whether a table has room for all of its columns."""
    count = len(table[0])
    return _total(_widths(table, count), range(count)) <= width


def _turned(table: Table) -> list[list[Text]]:
    """A line per run."""
    whole = [row for row in table if len(row) > 1]
    return [[row[i] for row in whole] for i in range(len(table[0]))] if whole else []


def _windowed(
    table: Table,
    widths: list[int],
    width: int,
    palette: Palette,
    pinned: int,
    current: int,
    groups: list[Sequence[int]],
) -> list[Text]:
    """Key, pinned run, and as many of the others about the current one as fit; the first heading counts the rest."""
    fixed = [0, pinned + 1] if pinned + 1 < len(widths) else [0]
    widths = [widths[0], *(min(NARROWED, cells) for cells in widths[1:])]
    at = next((i for i, group in enumerate(groups) if current + 1 in group), 0)
    two = sorted((_total(widths, group) + GAP for group in groups), reverse=True)[:2]
    spare = width - _total(widths, fixed[1:]) - GAP - sum(two)
    wanted = max(widths[0], table[0][0].cell_len + SIGNS)
    widths[0] = max(1, min(wanted, max(KEY_LEAST, spare)))
    room = width - _total(widths, fixed)
    first = last = at
    used = _total(widths, groups[at]) + GAP if groups else 0
    while groups:
        right = _total(widths, groups[last + 1]) + GAP if last + 1 < len(groups) else None
        left = _total(widths, groups[first - 1]) + GAP if first else None
        if right is not None and used + right <= room:
            last, used = last + 1, used + right
        elif left is not None and used + left <= room:
            first, used = first - 1, used + left
        else:
            break
    shown = [*fixed, *(column for group in groups[first : last + 1] for column in group)]
    lines = _lines(
        [[_counted(table[0][0], first, len(groups) - 1 - last, palette), *table[0][1:]], *table[1:]], widths, shown
    )
    return lines


def _counted(heading: Text, before: int, after: int, palette: Palette) -> Text:
    """``key  ‹2 5›``: runs to the left and right of those that are shown."""
    text = heading.copy()
    if before or after:
        signs = " ".join(filter(None, [f"‹{before}" if before else "", f"{after}›" if after else ""]))
        text.append(f"{' ' if text else ''}{signs}", style=f"bold {palette['warn']}")
    return text


def _widths(table: Table, count: int) -> list[int]:
    return [min(WIDEST, max((row[i].cell_len for row in table if i < len(row)), default=0)) for i in range(count)]


def _total(widths: Sequence[int], columns: Sequence[int] | range) -> int:
    return sum(widths[column] for column in columns) + GAP * max(0, len(columns) - 1)


def _lines(table: Table, widths: Sequence[int], columns: Sequence[int] | range) -> list[Text]:
    """Lines of some columns."""
    lines = []
    for row in table:
        line = Text(no_wrap=True)
        cells = [row[column] if column < len(row) else Text() for column in columns]
        for place, (column, cell) in enumerate(zip(columns, cells, strict=True)):
            if cell.cell_len > widths[column]:
                cell = Text(shortened(cell.plain, widths[column]), style=cell.style)
            line.append_text(cell)
            if place + 1 < len(cells):
                line.append(" " * (widths[column] - cell.cell_len + GAP))
        lines.append(line)
    return lines
