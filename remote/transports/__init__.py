"""Transports: two-way byte streams to an agent, one implementation per file.

One owner thread uses a transport; only ``wake`` and ``close`` may be called from other threads.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.allowance import MIB, Allowance
from remote.events import HostKeyAsked

AskHostKey = Callable[[HostKeyAsked], bool]
"""Called on the owner thread; blocks until the user has answered."""


class Stream(Protocol):
    """A connection like a socket's."""

    def recv(self, size: int, /) -> bytes:
        """Some bytes; b"" at the end. Raises OSError."""

    def sendall(self, data: bytes, /) -> None:
        """Send all of ``data``. Raises OSError."""

    def shutdown(self, how: int, /) -> None:
        """End one direction, as of a socket. Raises OSError."""

    def was_cut(self) -> bool:
        """Whether its end, which ``recv`` has returned, is that of the link, and not of the other end."""

    def close(self) -> None:
        """End it. May be repeated."""


class Transport(Protocol):
    """A two-way stream of bytes to one agent."""

    address: str
    """The box's network address once it is known, else ""."""

    def open(self, greeting: bytes = b"") -> None:
        """Connect and start the agent, which gets ``greeting`` first, as early as possible.

        Raises Unreachable, Refused or TryAgain.
        """

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises Unreachable."""

    def receive(self, timeout: float) -> bytes | None:
        """Some bytes; None after ``timeout`` seconds or ``wake``; b"" at the end. Raises Flood for endless errors."""

    def wake(self) -> None:
        """Interrupt a waiting ``receive``. Any thread."""

    def close(self) -> None:
        """Close it; ``receive`` then returns b"". Any thread; may be repeated."""

    def dial(self, host: str, port: int) -> Stream:
        """A stream to an address as the box reaches it; an address that refuses ends it. Any thread.

        Raises Unreachable.
        """

    def describe(self) -> str:
        """The other end, for display."""

    def algorithms(self) -> dict[str, str]:
        """``kex``, ``host_key`` and ``cipher`` of the connection; {} where they are not known."""

    def error_tail(self) -> str:
        """After the end, the tail of the agent's standard error, or ""."""


class ErrorTail:
    """The end of what the agent writes to its standard error."""

    KEPT = 8_192

    def __init__(self, clock: Clock = CLOCK) -> None:
        self._kept = bytearray()
        self._allowance = Allowance("the box floods the agent's standard error", MIB, MIB // 16, clock)

    def add(self, piece: bytes) -> None:
        """Append output. Raises Flood for more than an agent has to say."""
        self._kept += piece
        del self._kept[: -self.KEPT]
        self._allowance.spend(len(piece))

    def text(self) -> str:
        """The last 400 characters."""
        return self._kept.decode(errors="replace").strip()[-400:]


class Waker:
    """A socket pair that lets one thread interrupt another's ``select``."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # full: already awake; closed: nothing waits

    def wait(self, descriptors: list[int], timeout: float) -> list[int]:
        """The descriptors that become readable within ``timeout`` seconds."""
        reader = self._reader.fileno()
        ready = self._clock.select([*descriptors, reader], max(0.0, timeout))
        if reader in ready:
            try:
                self._reader.recv(4_096)
            except OSError:
                pass
        return [descriptor for descriptor in descriptors if descriptor in ready]

    def close(self) -> None:
        self._reader.close()
        self._writer.close()
