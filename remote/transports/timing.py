"""Timing of a connection: limits, round-trip times, detection of a suspended machine, and the waits between two."""

from __future__ import annotations

import math
import random
import socket
import threading
from dataclasses import dataclass

from grpo_train.run_dir.clock import Clock
from remote.protocol import LOST_AFTER_S, PING_EVERY_S, STALE_AFTER_S


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
POLL_S = 0.25
"""Between two looks whether this machine was suspended, or its network changed."""


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
