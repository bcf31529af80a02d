"""Timing of the client: waits, round-trip times, and detection of a suspended machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.protocol import LOST_AFTER_S, PING_EVERY_S, STALE_AFTER_S


@dataclass(frozen=True)
class Timing:
    """Waits of a client in seconds; tests shorten them."""

    ping_every: float = PING_EVERY_S
    stale_after: float = STALE_AFTER_S
    lost_after: float = LOST_AFTER_S
    backoff_first: float = 1.0
    backoff_most: float = 30.0
    settled_after: float = 10.0
    """A connection that lasted this long resets the back-off."""
    clock_jump: float = 10.0
    """A jump of the wall clock against the monotonic clock that means the machine was suspended."""


class SleepDetector:
    """Detects that this machine was suspended: the wall clock advanced, the monotonic clock did not."""

    def __init__(self, wall_clock: Callable[[], float], jump: float) -> None:
        self._wall_clock = wall_clock
        self._jump = jump
        self._skew = wall_clock() - time.monotonic()

    def happened(self) -> bool:
        """Whether it was suspended since the last call."""
        before, self._skew = self._skew, self._wall_clock() - time.monotonic()
        return self._skew - before > self._jump


class Pings:
    """Round-trip times; decides when the displayed one should change."""

    def __init__(self) -> None:
        self._count = 0
        self._pending: dict[int, float] = {}
        self.latency_ms: float | None = None
        self._shown_at = 0.0

    def sent(self, now: float) -> int:
        self._count += 1
        self._pending[self._count] = now
        return self._count

    def answered(self, n: int, now: float) -> bool:
        """Record pong ``n``; returns whether ``latency_ms`` changed."""
        began = self._pending.pop(n, None)
        self._pending = {number: sent for number, sent in self._pending.items() if number > n}
        if began is None:
            return False
        old, new = self.latency_ms, (now - began) * 1000
        if old is not None and abs(new - old) < max(1.0, 0.2 * old) and now - self._shown_at < 5.0:
            return False
        self.latency_ms, self._shown_at = new, now
        return True
