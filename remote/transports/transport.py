"""Two-way byte streams to an agent: what each transport offers, the exchange of hellos that opens a connection, and the
amount that a box may send.

One owner thread uses a transport; only ``wake`` and ``close`` may be called from other threads.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, Protocol

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.events import HostKeyAsked
from remote.protocol import PROTOCOL_VERSION, Decoder, ProtocolError, encode_parts
from remote.protocol.messages import Flood
from remote.transports.timing import POLL_S

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


MIB = 1 << 20
FRAME_COST = 4_096
"""Bytes that a frame counts for besides its own, so that many small ones are not cheaper than a large one."""
CREDIT_WORTH = 64
"""What a granted byte of a log is worth: its frame is free unless it is tiny. A reply to a request is free."""
ROTATION_COST = 1 << 18
"""Cost of a log's rotation or end, which makes the bytes before it worthless."""


class Allowance:
    """A budget in bytes that refills with time. Everything that a box sends and that costs work *must* be counted."""

    def __init__(self, message: str, burst: int = 32 * MIB, rate: int = 2 * MIB, clock: Clock = CLOCK) -> None:
        """``burst`` bytes at once (two of the longest frames), then ``rate`` bytes/s; ``message`` is for the user."""
        self._message, self._burst, self._rate, self._clock = message, burst, rate, clock
        self._left = float(burst)
        self._refilled = self._clock.monotonic()

    def spend(self, count: int) -> None:
        """Count bytes. Raises Flood once the allowance is used up."""
        now = self._clock.monotonic()
        refill = (now - self._refilled) * self._rate
        self._refilled = now
        self._left = min(self._burst, self._left + refill) - count
        if self._left < 0:
            raise Flood(self._message)


def greeting(box: Box, *, readonly: bool = False, copies: bool = False) -> bytes:
    """This program's hello. ``copies``: the connection is one for :mod:`remote.copying`."""
    hello = {"type": "hello", "protocol": PROTOCOL_VERSION, "settings": asdict(box.settings(readonly=readonly))}
    if copies:
        hello["copies"] = True
    return b"".join(encode_parts(hello))


def await_hello(
    transport: Transport, box: Box, timeout_s: float, closing: threading.Event, clock: Clock = CLOCK
) -> tuple[Decoder, dict[str, Any]]:
    """Wait for the agent's hello; returns it with the decoder, which may hold later bytes.

    Raises Refused for another protocol version, Unreachable without a hello and once ``closing`` is set.
    """
    decoder, deadline = Decoder(), clock.monotonic() + timeout_s
    while not closing.is_set() and clock.monotonic() <= deadline:
        data = transport.receive(min(POLL_S, timeout_s))
        if data == b"":
            ended = f"the connection to {box.name} ended before the agent's hello"
            raise Unreachable(f"{ended} ({tail})" if (tail := transport.error_tail()) else ended)
        for frame in decoder.feed(data or b""):
            if frame["type"] != "hello":
                raise ProtocolError(f"{box.name} sent a frame before its hello")
            if frame.get("protocol") != PROTOCOL_VERSION:
                raise Refused(f"the agent uses protocol {frame.get('protocol')}, this program {PROTOCOL_VERSION}")
            return decoder, frame
    raise Unreachable(f"no hello from {box.name} within {timeout_s:.0f} s")
