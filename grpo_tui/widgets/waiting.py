"""What a panel or a dialog says while it waits for the box."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

from textual.content import Content
from textual.widgets import Static

from grpo_tui.model.asking import Asking, seconds_waited
from grpo_tui.model.formatting import one_line
from remote.protocol import RemoteError

Reply = TypeVar("Reply")


def waiting(asking: Asking) -> Content | None:
    """Why the last request failed, or ``asking the box 3 s``; None if there is nothing to say."""
    if asking.problem:
        return Content.from_markup("[$warning]$text[/]", text=asking.problem)
    return _muted(asking) if seconds_waited(asking.waited) else None


def _muted(asking: Asking) -> Content:
    return Content.from_markup("[$text-muted]$text[/]", text=asking.words())


class WaitingLine(Static):
    """Says how long the box is asked, then why it did not answer, or what :meth:`update` is given."""

    def __init__(self, *, id: str) -> None:
        super().__init__("", id=id, classes="message")
        self._asking = Asking()

    def on_mount(self) -> None:
        self.set_interval(0.5, self._tick)

    def _tick(self) -> None:
        if self._asking.is_waiting:
            self.update(_muted(self._asking))

    async def wait(self, reply: Awaitable[Reply], failed: str = "") -> Reply | None:
        """The reply; None if the box did not answer, which is said then after ``failed``."""
        self._asking.start(reply)
        self._tick()
        try:
            return await reply
        except RemoteError as error:
            if self._asking.end(reply, error.message):
                self.update(Content.from_markup("[$error]✖ $text[/]", text=failed + one_line(error.message)))
            return None
        finally:
            self._asking.cancel(reply)
