"""W&B of a run: whether it was sent, its page, what failed."""

from __future__ import annotations

import asyncio
import sys
import webbrowser
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widgets import Button, Static

from grpo_tui.model.tracking import Tracking
from grpo_tui.screens.dialog import TextDialog

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


class TrackingScreen(TextDialog[None]):
    """``y`` copies the URL, or the command that sends the run; ``o`` opens the page in a browser."""

    BINDINGS: ClassVar = [Binding("y", "copy", show=False), Binding("o", "open", show=False)]

    def __init__(self, tracking: Tracking) -> None:
        super().__init__()
        self.tracking = tracking
        self.heading = f"W&B: {tracking.run}"

    def compose_text(self) -> ComposeResult:
        for line in _lines(self.tracking):
            yield Static(line, classes="message")
        yield Static(Content(self.tracking.url or self.tracking.command), classes="command")

    def compose_below(self) -> ComposeResult:
        keys = "y copies the URL · o opens it in a browser" if self.tracking.url else "y copies the command"
        yield Static(Content.from_markup("[$grpo-muted]$keys[/]", keys=keys), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy", id="copy", compact=True)
        if self.tracking.url:
            yield Button("Open in a browser", id="open", variant="primary", compact=True)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()

    def chosen(self, button: str) -> None:
        if button == "open":
            self.action_open()
        else:
            self.action_copy()

    def action_copy(self) -> None:
        """Copy the URL, or the command that sends the run."""
        app = self.app
        if self.tracking.url:
            app.copy(self.tracking.url, f"W&B page of {self.tracking.run}")
        else:
            app.copy(self.tracking.command, "command that sends it")

    def action_open(self) -> None:
        """Open the page in a browser of this machine."""
        app = self.app
        if self.tracking.url:
            app.work("browser", partial(_browse, app, self.tracking.url))


async def _browse(app: Desk, url: str) -> None:
    """Open a page in a process of its own, whose output does not reach the screen."""
    if not has_browser():
        app.warn("no graphical browser on this machine; y copies the URL", title="not opened")
        return
    null = asyncio.subprocess.DEVNULL
    command = [sys.executable, "-m", "webbrowser", "-t", url]
    try:
        await asyncio.create_subprocess_exec(*command, stdin=null, stdout=null, stderr=null, start_new_session=True)
    except OSError as error:
        app.warn(f"{error}; y copies the URL", title="not opened")
        return
    app.receipt("opened in the browser", url)


def has_browser() -> bool:
    """Whether this machine has a browser with a window: one in the terminal would take over the screen."""
    try:
        browser = webbrowser.get()
    except webbrowser.Error:
        return False
    is_generic = isinstance(browser, webbrowser.GenericBrowser)
    return not is_generic or isinstance(browser, webbrowser.BackgroundBrowser)


def _lines(tracking: Tracking) -> Iterator[Content]:
    if tracking.mode:
        yield Content.from_markup("sent [bold]$mode[/] since $at", mode=tracking.mode, at=tracking.at)
    elif tracking.asked in ("", "off"):
        yield Content("not tracked: tracking.wandb is off")
    else:
        yield Content.from_markup("nothing was sent (tracking.wandb is $asked)", asked=tracking.asked)
    if tracking.error:
        yield Content.from_markup("[$warning]▲ $at  $error[/]", at=tracking.failed_at, error=tracking.error)
    if not tracking.url:
        yield Content.from_markup("[$grpo-muted]send it at any time, on the box:[/]")
