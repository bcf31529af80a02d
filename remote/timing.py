"""The client's sense of time: its waits, round trips, and a machine that slept."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from remote.protocol import LOST_AFTER_S, PING_EVERY_S, STALE_AFTER_S


@dataclass(frozen=True)
class Timing:
    """Every wait of a client, in seconds; tests shorten them."""

    ping_every: float = PING_EVERY_S
    stale_after: float = STALE_AFTER_S
    lost_after: float = LOST_AFTER_S
    backoff_first: float = 1.0
    backoff_most: float = 30.0
    settled_after: float = 10.0
    """A connection that lived so long resets the back-off."""
    clock_jump: float = 10.0
    """The wall clock running ahead of the monotonic one by so much means that this machine slept."""


class SleepDetector:
    """Notices that this machine slept: the wall clock ran on, the monotonic one did not."""

    def __init__(self, wall_clock: Callable[[], float], jump: float) -> None:
        self._wall_clock = wall_clock
        self._jump = jump
        self._skew = wall_clock() - time.monotonic()

    def happened(self) -> bool:
        """Whether it slept since the last call."""
        before, self._skew = self._skew, self._wall_clock() - time.monotonic()
        return self._skew - before > self._jump


class Pings:
    """Round-trip times; says when the shown one should change."""

    def __init__(self) -> None:
        self._count = 0
        self._under_way: dict[int, float] = {}
        self.latency_ms: float | None = None
        self._shown_at = 0.0

    def sent(self, now: float) -> int:
        self._count += 1
        self._under_way[self._count] = now
        return self._count

    def answered(self, n: int, now: float) -> bool:
        began = self._under_way.pop(n, None)
        self._under_way = {k: v for k, v in self._under_way.items() if k > n}
        if began is None:
            return False
        old, new = self.latency_ms, (now - began) * 1000
        if old is not None and abs(new - old) < max(1.0, 0.2 * old) and now - self._shown_at < 5.0:
            return False
        self.latency_ms, self._shown_at = new, now
        return True
