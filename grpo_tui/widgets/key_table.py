"""Keys beside what they do, by group, as one widget: hundreds of small ones take a tenth of a second to mount."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

KEYS_WIDTH = 10
"""Cells of the column of keys, with two before it."""


class KeyRow(NamedTuple):
    """Keys and their help, or with no keys a heading."""

    keys: str
    help: Content
    tone: str = "$accent"


class KeyTable(Widget):
    """Each help text wraps in its own column."""

    DEFAULT_CSS = "KeyTable { height: auto; }"

    def __init__(self, rows: Sequence[KeyRow]) -> None:
        super().__init__()
        self.rows = rows

    def lines(self, width: int) -> list[Content]:
        """The table in lines of at most ``width`` cells."""
        lines: list[Content] = []
        indent = Content(" " * KEYS_WIDTH)
        for row in self.rows:
            if not row.keys:
                lines += [Content(), row.help] if lines else [row.help]
                continue
            keys = Content.from_markup(f"  [bold {row.tone}]$keys[/] ", keys=row.keys)
            wrapped = row.help.wrap(max(1, width - KEYS_WIDTH))
            if keys.cell_length > KEYS_WIDTH:
                lines.append(keys)
            else:
                first = wrapped[0] if wrapped else Content()
                lines.append(keys + Content(" " * (KEYS_WIDTH - keys.cell_length)) + first)
                wrapped = wrapped[1:]
            lines += [indent + line for line in wrapped]
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self.lines(width))

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.size.width))
