"""How bytes reach an agent and come back: one small interface, one file a form of it.

A transport is used by one owner thread; only ``wake`` and
``close`` may be called from others.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Protocol

from remote.events import HostKeyAsked

AskHostKey = Callable[[HostKeyAsked], bool]
"""Called on the owner thread, blocks until the user answered."""


class Unreachable(Exception):
    """The box cannot be reached now; it may work later."""


class Refused(Exception):
    """It cannot work as it is and waits for the user: a refused key, a changed host key, no Python, …"""


class TryAgain(Exception):
    """Not a failure: something was settled (the user accepted a host key); connect again at once."""


class Transport(Protocol):
    """A two-way stream of bytes to one agent."""

    def open(self) -> None:
        """Connect and start the agent. Raises Unreachable, Refused or TryAgain."""

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises Unreachable."""

    def receive(self, timeout: float) -> bytes | None:
        """Some bytes; None when none came within ``timeout`` seconds or ``wake`` was called; b"" at the end."""

    def wake(self) -> None:
        """Make a waiting ``receive`` return. Any thread."""

    def close(self) -> None:
        """End it; ``receive`` then returns b"". Any thread, any number of times."""

    def describe(self) -> str:
        """What it connects to, for the user's eyes."""

    def why(self) -> str:
        """After the end: the last words of the agent's standard error, or ""."""


class Waker:
    """A socket pair that lets one thread interrupt another's ``select``."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # full: it is awake already; closed: nobody waits

    def wait(self, descriptors: list[int], timeout: float) -> list[int]:
        """Which descriptors can be read, within ``timeout`` seconds."""
        reader = self._reader.fileno()
        ready, _, _ = select.select([*descriptors, reader], [], [], max(0.0, timeout))
        if reader in ready:
            try:
                self._reader.recv(4_096)
            except OSError:
                pass
        return [descriptor for descriptor in descriptors if descriptor in ready]

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
