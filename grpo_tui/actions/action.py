"""The types of an action, and the part of the app that actions use. No Textual at import."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_tui.model.connection import Connection
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store
from grpo_tui.options import Options
from remote.boxes import Box
from remote.protocol import RemoteError

GROUPS = ("Runs", "View", "Boxes", "Program")


@dataclass(frozen=True)
class Situation:
    """The state that decides which actions are available."""

    store: Store
    readonly: bool = False

    @property
    def run(self) -> RunRow | None:
        return self.store.run


class Home(Protocol):
    """The home screen, as actions use it."""

    def zoom(self) -> None: ...

    def back(self) -> None: ...

    def show_next_log(self) -> None: ...

    def toggle_smoothing(self) -> bool: ...

    def show_filter(self) -> None: ...


class Face(Protocol):
    """The app, as actions use it. Methods of Textual's App keep their names."""

    @property
    def options(self) -> Options: ...

    @property
    def actions(self) -> tuple[Action, ...]: ...

    @property
    def store(self) -> Store: ...

    @property
    def connection(self) -> Connection: ...

    @property
    def home(self) -> Home: ...

    def situation(self) -> Situation: ...

    async def ask(self, op: str, timeout: float = 30.0, **params: Any) -> dict[str, Any]:
        """Send a request to the box. Raises RemoteError."""
        ...

    async def show_dialog(self, dialog: Any) -> Any:
        """Show a dialog and wait for its result."""
        ...

    def push_screen(self, screen: Any) -> Any: ...

    def show_error(self, title: str, error: RemoteError) -> None: ...

    def receipt(self, title: str, detail: str = "") -> None:
        """Notify the user that an action succeeded."""
        ...

    def warn(self, message: str, title: str = "") -> None: ...

    def select_when_listed(self, run: str) -> None: ...

    def ignore_evaluation_end(self, session: str) -> None: ...

    async def use_box(self, box: Box) -> None: ...

    def run_in_terminal(self, argv: list[str], note: str) -> tuple[int, str]:
        """Hand the terminal to a command: (exit status, why it could not be started)."""
        ...

    def action_command_palette(self) -> None: ...

    def exit(self, *, message: str | None = None) -> None: ...


Reason = Callable[[Situation], str]
"""Why an action is not available now; "" if it is."""
Runner = Callable[[Face], Awaitable[None] | None]
"""What an action does. A coroutine function runs in a worker, so it may wait for dialogs and replies."""


@dataclass(frozen=True)
class Action:
    """One thing the user can do."""

    id: str
    key: str
    label: str
    """One or two words for the key bar."""
    help: str
    """A sentence for the help screen and the palette."""
    group: str
    run: Runner
    reason: Reason = lambda situation: ""
    dangerous: bool = False
    in_bar: bool = True

    @property
    def keys(self) -> list[str]:
        """Its keys; the key bar shows the first."""
        return [key.strip() for key in self.key.split(",")]


_KEY_LABELS = {
    "question_mark": "?", "colon": ":", "slash": "/", "escape": "esc", "tilde": "~",
    "left_square_bracket": "[", "right_square_bracket": "]", "ctrl+p": "^p",
}  # fmt: skip


def key_label(key: str) -> str:
    """Text of a key for the screen."""
    return _KEY_LABELS.get(key, key)
