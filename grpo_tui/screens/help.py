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

SETTLED_S = 0.1
"""By then, widgets know their sizes after a layout."""


class HelpScreen(Dialog[None]):
    """All actions by group, those of the view first. An unavailable action shows why.

    It is made once, while the app has nothing to do, so that a key only has to show it.
    """

    heading = "keys"

    def __init__(self, actions: tuple[Action, ...], situation: Situation, view: str) -> None:
        super().__init__()
        self.registry = actions
        self.table = KeyTable(())
        self._styled_for: object = None
        self._prepared_for: object = None
        self.fill(situation, view)

    def fill(self, situation: Situation, view: str) -> None:
        """Show the keys of a view, from the first one."""
        self.actions = [action for action in self.registry if action.is_in(view)]
        self.situation, self.view = situation, view
        self.table.show(self._rows())

    def compose(self) -> ComposeResult:
        """Without buttons: each widget takes time to mount."""
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

    def prepare(self) -> None:
        """Lay the screen out and render it, before it is shown, unless nothing has changed."""
        size = self.app.size
        prepared_for = (size, self.app.theme, self.table.rows)
        if prepared_for == self._prepared_for:
            return
        self._prepared_for = prepared_for
        self.post_message(events.Resize(size, size))  # chooses the classes for this size
        self.post_message(events.ScreenResume())
        self.set_timer(SETTLED_S, self._render_ahead)

    def _render_ahead(self) -> None:
        """Lay the screen out again while its table has another length or gets a scrollbar; then render it."""
        if self.is_current:
            return
        if self._layout_required:
            self._layout_required = False
            self._refresh_layout(self.app.size)
            self.set_timer(SETTLED_S, self._render_ahead)
        else:
            self._compositor.render_strips()  # the widgets keep their lines
            self._update_timer.resume()  # the first time, it waits for a frame

    def on_screen_resume(self, event: events.ScreenResume) -> None:
        """Keep the styles, and with them what is rendered, unless what they depend on has changed."""
        if (depends_on := (self.app.theme, self.app.app_focus)) == self._styled_for:
            event.refresh_styles = False
        self._styled_for = depends_on

    def on_mount(self) -> None:
        self.table.focus()  # so that the arrow keys scroll it

    def on_click(self, event: events.Click) -> None:
        """A click beside the frame closes it."""
        if not self.query_one("#dialog").region.contains(event.screen_x, event.screen_y):
            self.dismiss(None)


def _heading(group: str) -> KeyRow:
    return KeyRow("", group)
