"""Keys beside what they do, by group, as one widget that paints only the lines on the screen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

KEYS_WIDTH = 10
"""Cells of the column of keys, with two before it."""
INDENT = Content(" " * KEYS_WIDTH)


class KeyRow(NamedTuple):
    """Keys and their help, or with no keys a heading. ``note``: why the action is not available, below its help."""

    keys: str
    help: str
    tone: str = "$accent"
    note: str = ""


class KeyTable(ScrollView, can_focus=True):
    """Each help text wraps in its own column."""

    def __init__(self, rows: Sequence[KeyRow]) -> None:
        super().__init__(classes="body")
        self.rows = rows
        self._lines: tuple[int, list[Content]] = (-1, [])
        self._painted: tuple[object, list[Strip]] = (None, [])
        """Of what, and the strips on the screen."""

    def lines(self, width: int) -> list[Content]:
        """The table in lines of at most ``width`` cells, made once for each width."""
        if self._lines[0] != width:
            self._lines = (width, [line for index, row in enumerate(self.rows) for line in _row(row, index, width)])
        return self._lines[1]

    def on_resize(self, event: events.Resize) -> None:
        width = self.scrollable_content_region.width
        self.virtual_size = Size(width, len(self.lines(width)))

    def render_line(self, y: int) -> Strip:
        top, (width, height) = round(self.scroll_offset.y), self.scrollable_content_region.size
        key = (top, width, height, self.app.theme)
        if key != self._painted[0]:
            shown = Content("\n").join(self.lines(width)[top : top + height])
            self._painted = (key, Visual.to_strips(self, shown, width, height, self.visual_style, pad=True))
        strips = self._painted[1]
        return strips[y] if y < len(strips) else Strip.blank(width, self.rich_style)


def _row(row: KeyRow, index: int, width: int) -> list[Content]:
    if not row.keys:
        heading = Content.styled(row.help, "bold $primary")
        return [Content(), heading] if index else [heading]
    room = max(1, width - KEYS_WIDTH)
    wrapped = [Content(row.help)] if len(row.help) <= room else Content(row.help).wrap(room)
    wrapped += [line.stylize("$grpo-muted") for line in Content(row.note).wrap(room)] if row.note else []
    keys = Content.assemble("  ", (row.keys, f"bold {row.tone}"), " ")
    lines = [keys]
    if keys.cell_length <= KEYS_WIDTH and wrapped:
        lines = [keys + Content(" " * (KEYS_WIDTH - keys.cell_length)) + wrapped.pop(0)]
    return lines + [INDENT + line for line in wrapped]
