"""The types of an action. No Textual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from grpo_train.run_dir.lazy_dataclass import dataclass
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store

GROUPS = ("Runs", "Views", "Home", "Charts", "Rollouts", "Logs", "Box", "Compare", "History", "Boxes", "Program")


@dataclass(frozen=True)
class Situation:
    """The state that decides which actions are available."""

    store: Store
    readonly: bool = False
    view: str = ""
    has_history: bool = True
    """False: the app was started with ``--no-cache``."""

    @property
    def marked(self) -> list[RunRow]:
        """The runs that an action is for instead of the selected one: where the list is shown, the marked ones."""
        marks = self.store.marks
        return [row for row in self.store.runs or () if row.name in marks] if marks and self.view == "home" else []

    @property
    def run(self) -> RunRow | None:
        return self.store.run


Reason = Callable[[Situation], str]
"""Why an action is not available now; "" if it is."""
Runner = Callable[[Any], Awaitable[None] | None]
"""What an action does with the app; the first line of its docstring is the help.

A coroutine function runs in a worker, so it may wait for dialogs and replies.
"""


@dataclass(frozen=True)
class Action:
    """One thing the user can do."""

    id: str
    key: str
    label: str
    """One or two words for the key bar."""
    group: str
    run: Runner
    reason: Reason = lambda situation: ""
    dangerous: bool = False
    in_bar: bool = True
    opens_form: bool = False
    """Whether keys that are pressed until its form is open belong to the form."""
    scope: str = ""
    """The view in which it exists; "" = every view …"""
    not_in: str = ""
    """… but this one, where its key does something like it."""

    def is_in(self, view: str) -> bool:
        """Whether it exists in a view."""
        if view == "history" and self.group == "Runs":
            return False  # these act on the selected run of the box; the history has those of all boxes
        return self.scope in ("", view) and view != self.not_in

    def shares_a_view(self, other: Action) -> bool:
        """Whether both exist in some view."""
        if self.scope and other.scope:
            return self.scope == other.scope
        view = self.scope or other.scope
        return not view or (self.is_in(view) and other.is_in(view))

    @property
    def help(self) -> str:
        """A sentence for the help screen and the palette."""
        return (self.run.__doc__ or "").partition("\n")[0].removesuffix(".")

    @property
    def keys(self) -> list[str]:
        """Its keys; the key bar shows the first."""
        return [key.strip() for key in self.key.split(",")]


_KEY_LABELS = {
    "question_mark": "?", "colon": ":", "slash": "/", "escape": "esc", "tilde": "~",
    "left_square_bracket": "[", "right_square_bracket": "]", "ctrl+p": "^p", "plus": "+", "minus": "−", "comma": ",",
    "full_stop": ".", "equals_sign": "=", "less_than_sign": "<", "greater_than_sign": ">", "left": "←", "right": "→",
    "up": "↑", "down": "↓",
    "vertical_line": "|", "shift+left": "⇧←", "shift+right": "⇧→", "number_sign": "#", "ctrl+f": "^f", "ctrl+z": "^z",
}  # fmt: skip


def key_label(key: str) -> str:
    """Text of a key for the screen."""
    return _KEY_LABELS.get(key, key)
