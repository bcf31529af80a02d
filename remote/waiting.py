"""Waits between connections: a back-off, a refusal, and what ends them early."""

from __future__ import annotations

import math
import random
import threading

from grpo_train.run_dir.clock import Clock
from remote.timing import NetworkDetector, SleepDetector, Timing

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
