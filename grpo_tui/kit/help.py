"""The help screen: every key and what it does, from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual

from grpo_tui.actions import GROUPS, Action, Situation, key_label
from grpo_tui.kit.bars import StatusLine
from grpo_tui.kit.dialog import Dialog

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


PANELS = (
    ("tab", "Focus the next panel (shift+tab: the previous one, or click)"),
    ("↑ ↓ k j", "Lists: move the cursor. Logs: scroll (end: follow new lines)"),
    ("← → h l", "Logs: previous or next tab. Completion: older or newer"),
    ("g G", "Go to the first or last row or line (also home and end)"),
)


class HelpScreen(Dialog[None]):
    """All actions by group, those of the view first. An unavailable action shows why."""

    heading = "keys"

    def __init__(self, actions: tuple[Action, ...], situation: Situation, view: str) -> None:
        super().__init__()
        self.actions = [action for action in actions if action.is_in(view)]
        self.situation, self.view = situation, view
        self.table = KeyTable(self._rows())

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as frame:
            frame.border_title = Content(self.heading)
            frame.border_subtitle = Content("esc closes")
            yield self.table
        yield StatusLine(self.app.store)

    def _rows(self) -> list[KeyRow]:
        here = self.view.title()
        groups = sorted({action.group for action in self.actions}, key=lambda g: (g != here, GROUPS.index(g)))
        rows: list[KeyRow] = []
        for group in groups:
            rows.append(_heading(group))
            rows += [self._row_of(action) for action in self.actions if action.group == group]
            if group == groups[0]:
                rows.append(_heading("Panels"))
                rows += [KeyRow(keys, text) for keys, text in PANELS]
        return rows

    def _row_of(self, action: Action) -> KeyRow:
        reason = action.reason(self.situation)
        tone = "$error" if action.dangerous else "$accent"
        keys = " ".join(key_label(key) for key in action.keys)
        return KeyRow(keys, self.app.help_of(action), tone, f"not available: {reason}" if reason else "")

    def on_mount(self) -> None:
        self.table.focus()  # so that the arrow keys scroll it

    def on_click(self, event: events.Click) -> None:
        """A click beside the frame closes it."""
        if not self.query_one("#dialog").region.contains(event.screen_x, event.screen_y):
            self.dismiss(None)


def _heading(group: str) -> KeyRow:
    return KeyRow("", group)
