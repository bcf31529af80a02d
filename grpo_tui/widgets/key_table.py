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
        self._strips: list[Strip] = []
        self._rendered_for: tuple[int, str] | None = None
        """Width and theme of the strips."""

    def lines(self, width: int) -> list[Content]:
        """The table in lines of at most ``width`` cells."""
        return [line for index, row in enumerate(self.rows) for line in _row(row, index, width)]

    def on_resize(self, event: events.Resize) -> None:
        self._render_rows()

    def _render_rows(self) -> None:
        width, theme = self.scrollable_content_region.width, self.app.theme
        if self._rendered_for != (width, theme):
            self._rendered_for = (width, theme)
            lines = self.lines(width)
            text = Content("\n").join(lines)
            self._strips = Visual.to_strips(self, text, width, len(lines), self.visual_style, pad=True)
            self.virtual_size = Size(width, len(self._strips))

    def render_line(self, y: int) -> Strip:
        self._render_rows()
        y += round(self.scroll_offset.y)
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.scrollable_content_region.width)


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
