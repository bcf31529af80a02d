"""The help screen: every key and what it does, from the table of actions."""

from __future__ import annotations

from textual import events
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content

from grpo_tui.actions import GROUPS, Action, Situation, key_label
from grpo_tui.screens.dialog import Dialog
from grpo_tui.widgets.key_table import KeyRow, KeyTable

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
