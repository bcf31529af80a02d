"""One connection to a box for one command, without the app. Its questions are asked in the terminal.

Without a terminal, they are answered no.
"""

from __future__ import annotations

import getpass
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, ClientEvent, FilesLeftOut, HostKeyAsked, Link, LinkChanged, QuestionAsked
from remote.protocol import RemoteError
from remote.protocol.grants import Grant

TERMINAL = "/dev/tty"


def has_person() -> bool:
    """Whether somebody can answer."""
    try:
        with open(TERMINAL):
            return True
    except OSError:  # or Windows
        return sys.stdin.isatty() and sys.stderr.isatty()


def accept_host_key(question: HostKeyAsked) -> bool:
    """Show an unknown host key; True if it is accepted."""
    text = f"{question.host} has the unknown host key {question.key_type} {question.fingerprint}."
    if not has_person():
        print(f"{text} Accept it once in a terminal: grpo-tui doctor --box NAME", file=sys.stderr)
        return False
    return _line(f"{text}\nIs this the box? [y/N] ").strip().lower() in ("y", "yes")


def answer(question: QuestionAsked) -> str | None:
    """The answer to a question of ssh; None if it was dismissed. It is neither stored nor logged."""
    if question.kind == "touch" or not has_person():
        print(question.text, file=sys.stderr)
        return None
    if question.kind == "confirm":
        return "yes" if _line(f"{question.text} [y/N] ").strip().lower() in ("y", "yes") else None
    try:
        return _line(f"{question.text} ") if question.echo else getpass.getpass(f"{question.text} ")
    except EOFError:
        return None


def _line(prompt: str) -> str:
    try:
        with open(TERMINAL, "w") as screen, open(TERMINAL) as keys:
            print(prompt, end="", file=screen, flush=True)
            return keys.readline().rstrip("\n")
    except OSError:
        print(prompt, end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().rstrip("\n")


CONNECT_S = 40.0
REPLY_S = 120.0
Event = TypeVar("Event")


class ShellConnection:
    """A client whose link is up. Use it in a ``with`` statement."""

    def __init__(
        self,
        box: Box,
        *,
        readonly: bool = False,
        grant: Grant | None = None,
        on_event: Callable[[ClientEvent], None] | None = None,
        connect_s: float = CONNECT_S,
        has_person: bool = True,
    ) -> None:
        """Connect; ``on_event`` gets every event, on the client's threads.

        Raises RemoteError (``unreachable``) where the link is not up within ``connect_s``, besides the time that a
        person needs to answer; with ``has_person=False`` a question ends it.
        """
        self.box, self._on_event, self._why = box, on_event, ""
        self._connect_s, self._has_person = connect_s, has_person
        self._changed = threading.Condition()
        self._last: dict[type, Any] = {}
        """The newest event of each kind."""
        self._left_out: dict[str, str] = {}
        self._asked: list[HostKeyAsked | QuestionAsked] = []
        self.client = BoxClient(box, self._take, readonly=readonly, grant=grant)
        self.client.start()
        try:
            why = self._wait()
        except BaseException:  # Ctrl-C
            self.close()
            raise
        if why:
            self.close()
            raise RemoteError("unreachable", f"{box.name}: {why}")

    def _wait(self) -> str:
        """Wait for the link, and let a person answer what it asks; returns why it is not up."""
        until = time.monotonic() + self._connect_s
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._why or self._is_up(), until - time.monotonic())
                question = self._asked.pop(0) if self._asked else None
                if question is None:
                    return "" if self._is_up() else self._why or f"no connection within {self._connect_s:.0f} s"
            if not self._has_person:
                asked = "its host key is not known" if isinstance(question, HostKeyAsked) else "it asks to log in"
                return f"{asked}: connect once with  grpo-tui doctor --box {self.box.name}"
            if isinstance(question, HostKeyAsked):
                self.client.answer_host_key(accept_host_key(question))
            else:
                given = answer(question)
                if question.kind != "touch":
                    self.client.answer_question(given)
            until = time.monotonic() + self._connect_s

    def __enter__(self) -> ShellConnection:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the link, and name the files that the box could not read. Runs are not affected."""
        self.client.close()
        for file, reason in self._left_out.items():
            print(f"warning: {self.box.name}: {file} is left out: {reason}", file=sys.stderr)
        self._left_out.clear()

    def request(self, op: str, reply_s: float = REPLY_S, **params: Any) -> dict[str, Any]:
        """The reply of the box. Raises RemoteError."""
        return self.client.request(op, reply_s, **params).result()

    def event(self, kind: type[Event], timeout: float) -> Event | None:
        """The newest event of a kind, awaited for ``timeout`` seconds; None without one."""
        with self._changed:
            self._changed.wait_for(lambda: kind in self._last, timeout)
            return self._last.get(kind)

    def _is_up(self) -> bool:
        return BoxGreeted in self._last

    def _take(self, event: ClientEvent) -> None:
        with self._changed:
            self._last[type(event)] = event
            if isinstance(event, LinkChanged) and event.state in (Link.LOST, Link.REFUSED):
                self._why = self._why or event.detail
            elif isinstance(event, FilesLeftOut):
                self._left_out |= event.files
            elif isinstance(event, (HostKeyAsked, QuestionAsked)):
                self._asked.append(event)
            self._changed.notify_all()
        if self._on_event is not None:
            self._on_event(event)
