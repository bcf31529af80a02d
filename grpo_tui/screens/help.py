"""Every key and what it does, made from the registry."""

from __future__ import annotations

from textual.app import ComposeResult
from textual.containers import VerticalScroll
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
                lines = [Content.from_markup("[bold $primary]$group[/]", group=group)]
                lines += [self._line(action) for action in self.actions if action.group == group]
                if group == "Look":
                    lines += [_row(keys, words) for keys, words in _MOVING]
                yield Static(Content("\n").join(lines), classes="group")

    def _line(self, action: Action) -> Content:
        line = _row(" ".join(key_words(key) for key in action.all_keys), action.help, action.dangerous)
        if why := action.reason(self.situation):
            line += Content.from_markup("\n          [$grpo-muted]not now: $why[/]", why=why)
        return line

    def on_mount(self) -> None:
        self.query_one(".body").focus()  # the arrows scroll it


def _row(keys: str, words: str, dangerous: bool = False) -> Content:
    tone = "$error" if dangerous else "$accent"
    return Content.from_markup(f"  [bold {tone}]$keys[/] ", keys=f"{keys:<7}") + Content(words)
