"""The help screen: every key and what it does, from the registry."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.actions.action import GROUPS, Action, Situation, key_label
from grpo_tui.screens.dialog import Dialog

_NAVIGATION = (
    ("tab", "Focus the next panel (shift+tab: the previous one, or click)"),
    ("↑ ↓ k j", "Runs: select a run. Logs: scroll (end: follow new lines)"),
    ("← → h l", "Logs: previous or next tab. Completion: older or newer"),
    ("g G", "Go to the first or last row or line (also home and end)"),
)


class HelpScreen(Dialog[None]):
    """All actions by group. An unavailable action shows why."""

    heading = "keys"

    def __init__(self, actions: tuple[Action, ...], situation: Situation, view: str) -> None:
        super().__init__()
        self.actions = [action for action in actions if action.is_in(view)]
        self.situation, self.view = situation, view

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body"):
            here = self.view.title()
            for group in sorted({action.group for action in self.actions}, key=lambda g: (g != here, GROUPS.index(g))):
                yield Static(Content.from_markup("[bold $primary]$group[/]", group=group), classes="group")
                for action in self.actions:
                    if action.group == group:
                        yield self._row_of(action)
                if group == "Home":
                    for keys, text in _NAVIGATION:
                        yield _row(keys, Content(text))

    def _row_of(self, action: Action) -> Horizontal:
        text = Content(action.help)
        if reason := action.reason(self.situation):
            text += Content.from_markup("\n[$grpo-muted]not available: $reason[/]", reason=reason)
        return _row(" ".join(key_label(key) for key in action.keys), text, action.dangerous)

    def on_mount(self) -> None:
        self.query_one(".body").focus()  # so that the arrow keys scroll it


def _row(keys: str, text: Content, dangerous: bool = False) -> Horizontal:
    """Keys beside their help, which wraps in its own column."""
    tone = "$error" if dangerous else "$accent"
    shown = Content.from_markup(f"[bold {tone}]$keys[/]", keys=keys)
    return Horizontal(Static(shown, classes="keys"), Static(text, classes="help-text"), classes="key-row")
