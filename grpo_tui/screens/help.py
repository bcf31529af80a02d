"""Every key and what it does, made from the registry."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from grpo_tui.actions import GROUPS, Action, Situation, key_words
from grpo_tui.screens.dialog import Dialog

_MOVING = (
    ("tab", "Turn to the next panel (shift+tab: the one before); a click does too"),
    ("↑ ↓", "In the list of runs: select one. In a log: scroll; end follows again"),
    ("← →", "In a log: the tab beside it. In the completion: an older one, a newer one"),
)


class HelpScreen(Dialog[None]):
    """Grouped as in the registry; what cannot be done now says why."""

    HEADING = "keys"

    def __init__(self, actions: tuple[Action, ...], situation: Situation) -> None:
        super().__init__()
        self.actions, self.situation = actions, situation

    def compose_body(self) -> ComposeResult:
        with VerticalScroll(classes="body"):
            for group in GROUPS:
                yield Static(Content.from_markup("[bold $primary]$group[/]", group=group), classes="group")
                for action in self.actions:
                    if action.group == group:
                        yield self._row_of(action)
                if group == "Look":
                    for keys, words in _MOVING:
                        yield _row(keys, Content(words))

    def _row_of(self, action: Action) -> Horizontal:
        words = Content(action.help)
        if why := action.reason(self.situation):
            words += Content.from_markup("\n[$grpo-muted]not now: $why[/]", why=why)
        return _row(" ".join(key_words(key) for key in action.all_keys), words, action.dangerous)

    def on_mount(self) -> None:
        self.query_one(".body").focus()  # the arrows scroll it


def _row(keys: str, words: Content, dangerous: bool = False) -> Horizontal:
    """Keys, and beside them what they do: a line that does not fit is folded in its own column."""
    tone = "$error" if dangerous else "$accent"
    shown = Content.from_markup(f"[bold {tone}]$keys[/]", keys=keys)
    return Horizontal(Static(shown, classes="keys"), Static(words, classes="words"), classes="key-row")
