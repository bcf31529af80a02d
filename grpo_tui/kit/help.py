"""The help screen: every key and what it does, from the table of actions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest
from typing import ClassVar, NamedTuple

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.visual import Visual
from textual.widgets import Input

from grpo_tui.actions import GROUPS, Action, Situation, key_label
from grpo_tui.kit.bars import StatusLine
from grpo_tui.kit.dialog import Dialog, LineInput

KEYS_WIDTH = 10
"""Cells of the column of keys, with two before it."""
INDENT = Content(" " * KEYS_WIDTH)
TWO_COLUMNS, GAP = 96, 3
"""Cells from which there are two columns, and between them."""


class KeyRow(NamedTuple):
    """Keys and their help, or with no keys a heading. ``note``: why the action is not available, below its help."""

    keys: str
    help: str
    tone: str = "$accent"
    note: str = ""
    label: str = ""
    """One or two words, which the filter finds, too."""


class KeyTable(ScrollView):
    """Each help text wraps in its own column; where two columns of groups fit, they share the height."""

    def __init__(self, rows: Sequence[KeyRow]) -> None:
        super().__init__(classes="body")
        self.rows = rows
        self._strips: list[Strip] = []
        self._rendered_for: tuple[object, ...] = ()
        """Rows, width and theme of the strips."""

    def show(self, rows: Sequence[KeyRow]) -> None:
        """Show other rows, from the first."""
        self.rows = rows
        self.scroll_home(animate=False)
        self._render_rows()
        self.refresh()

    def lines(self, width: int) -> list[Content]:
        """The table in lines of at most ``width`` cells."""
        if width < TWO_COLUMNS:
            return _lines(self.rows, width)
        column = (width - GAP) // 2
        starts = [index for index, row in enumerate(self.rows) if index and not row.keys]
        groups = [_lines(self.rows[one:end], column) for one, end in pairwise((0, *starts, len(self.rows)))]
        splits = [(_joined(groups[:at]), _joined(groups[at:])) for at in range(1, len(groups) + 1)]
        left, right = min(splits, key=lambda sides: max(map(len, sides)))
        empty = Content()
        return [
            one + Content(" " * (column + GAP - one.cell_length)) + other
            for one, other in zip_longest(left, right, fillvalue=empty)
        ]

    def on_resize(self, event: events.Resize) -> None:
        self._render_rows()

    def _render_rows(self) -> None:
        width, theme = self.scrollable_content_region.width, self.app.theme
        if self._rendered_for != (self.rows, width, theme):
            self._rendered_for = (self.rows, width, theme)
            lines = self.lines(width) or [Content()]
            text = Content("\n").join(lines)
            self._strips = Visual.to_strips(self, text, width, len(lines), self.visual_style, pad=True)
            self.virtual_size = Size(width, len(self._strips))

    def render_line(self, y: int) -> Strip:
        self._render_rows()
        y += round(self.scroll_offset.y)
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.scrollable_content_region.width)


def _lines(rows: Sequence[KeyRow] | None, width: int) -> list[Content]:
    return [line for index, row in enumerate(rows or ()) for line in _row(row, index, width)]


def _joined(groups: list[list[Content]]) -> list[Content]:
    """Groups below each other, with a line between them."""
    return [line for index, group in enumerate(groups) for line in ([Content()] if index else []) + group]


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
    """All actions by group, those of the view first; typing filters them. An unavailable action shows why."""

    heading = "keys"
    BINDINGS: ClassVar = [
        Binding("up", "scroll(-1)", show=False),
        Binding("down", "scroll(1)", show=False),
        Binding("pageup", "scroll(-10)", show=False),
        Binding("pagedown", "scroll(10)", show=False),
    ]

    def __init__(self, actions: tuple[Action, ...], situation: Situation, view: str) -> None:
        super().__init__()
        self.actions = [action for action in actions if action.is_in(view)]
        self.situation, self.view = situation, view
        self.table = KeyTable(self._rows())

    def compose(self) -> ComposeResult:
        with Vertical(id="dialog") as frame:
            frame.border_title = Content(self.heading)
            frame.border_subtitle = Content("↑ ↓ scroll · esc closes")
            yield LineInput(placeholder="type words or a key to filter, e.g. back up, or B", id="search", compact=True)
            yield self.table
        yield StatusLine(self.app.store)

    def _rows(self, wanted: str = "") -> list[KeyRow]:
        here = self.view.title()
        groups = sorted({action.group for action in self.actions}, key=lambda g: (g != here, GROUPS.index(g)))
        rows: list[KeyRow] = []
        for group in groups:
            rows += _section(group, [self._row_of(action) for action in self.actions if action.group == group], wanted)
            if group == groups[0]:
                rows += _section("Panels", [KeyRow(keys, text) for keys, text in PANELS], wanted)
        return rows or [KeyRow("", f"no action has “{wanted}”; esc shows all")]

    def _row_of(self, action: Action) -> KeyRow:
        reason = action.reason(self.situation)
        tone = "$error" if action.dangerous else "$accent"
        keys = " ".join(key_label(key) for key in action.keys)
        return KeyRow(keys, self.app.help_of(action), tone, f"not available: {reason}" if reason else "", action.label)

    def on_mount(self) -> None:
        self.query_one("#search").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        self.table.show(self._rows(event.value.strip()))

    def action_scroll(self, by: int) -> None:
        self.table.scroll_relative(y=by, animate=False)

    def action_cancel(self) -> None:
        """Escape first clears the filter."""
        field = self.query_one("#search", Input)
        if field.value:
            field.value = ""
        else:
            super().action_cancel()

    def on_click(self, event: events.Click) -> None:
        """A click beside the frame closes it."""
        if not self.query_one("#dialog").region.contains(event.screen_x, event.screen_y):
            self.dismiss(None)


def _section(group: str, rows: list[KeyRow], wanted: str) -> list[KeyRow]:
    """The rows of a group that have a key, or else all words; with its heading, if there are any."""
    words = wanted.lower().split()
    found = [
        row for row in rows
        if wanted in row.keys.split() or all(word in f"{group} {row.label} {row.help}".lower() for word in words)
    ]  # fmt: skip
    if len(wanted) == 1:  # a letter is in every sentence
        found = [row for row in rows if wanted in row.keys.split()]
    return [KeyRow("", group), *found] if found else []
