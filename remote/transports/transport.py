"""Two-way byte streams to an agent: what each transport offers, the exchange of hellos, the timing.

One owner thread uses a transport; only ``wake`` and ``close`` may be called from other threads.
"""

from __future__ import annotations

import math
import random
import socket
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.events import HostKeyAsked
from remote.protocol import (
    LOST_AFTER_S,
    PING_EVERY_S,
    PROTOCOL_VERSION,
    STALE_AFTER_S,
    Decoder,
    ProtocolError,
    encode_parts,
)
from remote.protocol.frames import Flood
from remote.protocol.grants import Grant

CONNECT_S = 10
"""Time for a TCP connection."""
SEND_S = 15.0
"""A box that takes no bytes for this long is lost."""
EXIT_S = 0.3
"""Time for a child process to exit once its input has ended."""
POLL_S = 0.25
"""Between two looks whether a wait is still wanted."""


@dataclass(frozen=True)
class Timing:
    """Waits of a client in seconds. Tests keep them, and advance the client's clock."""

    ping_every: float = PING_EVERY_S
    stale_after: float = STALE_AFTER_S
    lost_after: float = LOST_AFTER_S
    backoff_first: float = 1.0
    backoff_most: float = 30.0
    settled_after: float = 10.0
    """A connection that lasted this long resets the back-off."""
    clock_jump: float = 10.0
    """Seconds by which ``boottime`` gets ahead of the monotonic clock when the machine was suspended."""
    ask_again: float = 300.0
    """Wait after a refusal by the box."""
    network_every: float = 3.0
    """How often a waiting client looks for a change of network."""
    step: float = 15.0
    """Limit of one step of opening the link: banner, key exchange, each authentication, each channel."""


class SleepDetector:
    """Detects that this machine was suspended: ``boottime`` advanced, the monotonic clock did not."""

    def __init__(self, clock: Clock, jump: float) -> None:
        self._clock = clock
        self._jump = jump
        self._skew = clock.boottime() - clock.monotonic()

    def happened(self) -> bool:
        """Whether it was suspended since the last call."""
        before, self._skew = self._skew, self._clock.boottime() - self._clock.monotonic()
        return self._skew - before > self._jump


class NetworkDetector:
    """Detects a change of network: this machine would use another local address towards a box.

    A connected UDP socket sends nothing; it only chooses a route. Where the box's address is not known, the addresses
    reserved for documentation stand for the default routes.
    """

    def __init__(self, every: float, clock: Clock) -> None:
        self._every, self._clock = every, clock
        self._next = 0.0
        self._target = ""
        self._before: list[str] = []

    def watch(self, address: str) -> None:
        """Start to watch the routes towards an address ("" if unknown) and the default routes."""
        self._target = address
        self._before = self._local()
        self._next = self._clock.monotonic() + self._every

    def happened(self) -> bool:
        """Whether the network changed since the last call; looks every few seconds."""
        if self._clock.monotonic() < self._next:
            return False
        before = self._before
        self.watch(self._target)
        return self._before != before

    def _local(self) -> list[str]:
        return [_local_address(address) for address in (self._target, "192.0.2.1", "2001:db8::1") if address]


def _local_address(address: str) -> str:
    """The local address of a route; "" without one."""
    try:
        found = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        family, kind, _, _, target = found[0]  # with the zone of an IPv6 address
        with socket.socket(family, kind) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return ""


SKEW_STEP_S = 0.5
"""Smaller differences between the clocks are not reported."""
SKEW_ERROR_S = 1.0
"""A less certain first measurement is not reported, unless it shows a difference."""
MAX_PENDING = 100
"""Pings whose pong is awaited; a box may never send it."""


class Pings:
    """Round-trip times and the difference between the clocks; decides when what is displayed should change."""

    def __init__(self) -> None:
        self._count = 0
        self._pending: dict[int, float] = {}
        self.latency_ms: float | None = None
        self.skew_s: float | None = None
        """Seconds to add to a time on the box's clock to get this machine's; None before the first pong with a time."""
        self._shown_at = 0.0

    def sent(self, now: float) -> int:
        self._count += 1
        self._pending[self._count] = now
        self._pending.pop(self._count - MAX_PENDING, None)
        return self._count

    def latency_at(self, now: float) -> float | None:
        """The latest round trip, or how long the oldest ping waits for its pong if that is longer."""
        waiting = (now - min(self._pending.values(), default=now)) * 1000
        return self.latency_ms and max(self.latency_ms, waiting)

    def answered(self, n: int, now: float, box_time: float | None = None, wall_time: float = 0.0) -> bool:
        """Record pong ``n``, sent at ``box_time``; returns whether ``latency_ms`` changed."""
        began = self._pending.pop(n, None)
        self._pending = {number: sent for number, sent in self._pending.items() if number > n}
        if began is None:
            return False
        if box_time is not None:
            error = (now - began) / 2  # one way may have taken all of the time
            skew = wall_time - error - box_time
            first = self.skew_s is None and error <= SKEW_ERROR_S
            if first or abs(skew - (self.skew_s or 0.0)) >= SKEW_STEP_S + error:
                self.skew_s = skew
        old, new = self.latency_ms, (now - began) * 1000
        if old is not None and abs(new - old) < max(1.0, 0.2 * old) and now - self._shown_at < 5.0:
            return False
        self.latency_ms, self._shown_at = new, now
        return True


FLOODED = 17
"""Failures that a flood counts for: the longest back-off."""


class Waiting:
    """The waits of one client. Only its owner thread waits; any thread may end a wait."""

    def __init__(self, timing: Timing, clock: Clock, closing: threading.Event) -> None:
        self._timing, self._clock = timing, clock
        self._closing = closing
        self._sleep = SleepDetector(clock, timing.clock_jump)
        self._network = NetworkDetector(timing.network_every, clock)
        self._retry_now = threading.Event()

    def end(self) -> None:
        """End the wait: a person asks for a retry, or the client closes."""
        self._retry_now.set()

    def forget(self) -> None:
        """Forget earlier requests for a retry."""
        self._retry_now.clear()

    def was_suspended(self) -> bool:
        """Whether this machine was suspended since the last call."""
        return self._sleep.happened()

    def back_off_s(self, failures: int, *, at_once: bool) -> float:
        """Seconds to wait, more after each failure in a row; ``at_once``: the first try after a link that stood."""
        wait: float = min(self._timing.backoff_most, self._timing.backoff_first * 2 ** min(failures - 1, 16))
        return wait * (0.1 if at_once else 1.0) * random.uniform(0.8, 1.2)

    def wait(self, seconds: float | None, address: str) -> bool:
        """Wait for ``seconds`` (None = forever), the end of a suspend, a change of network, or a person.

        Returns whether it was a person. Only :meth:`end` ends a wait without a limit.
        """
        if self._closing.is_set():
            return False
        clock = self._clock
        end = math.inf if seconds is None else clock.monotonic() + seconds
        self._sleep.happened()
        self._network.watch(address)
        while not clock.wait(self._retry_now, max(0.0, min(POLL_S, end - clock.monotonic()))):
            if seconds is None:
                continue
            if clock.monotonic() >= end or self._sleep.happened() or self._network.happened():
                return False
        return True


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


def greeting(box: Box, *, readonly: bool = False, grant: Grant | None = None, copies: bool = False) -> bytes:
    """This program's hello. ``copies``: the connection is one for :mod:`remote.copying`."""
    settings = asdict(box.settings(readonly=readonly, grant=grant))
    hello = {"type": "hello", "protocol": PROTOCOL_VERSION, "settings": settings}
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
