"""Amount that a box may send: what the client asked for, and a modest rate of everything else."""

from __future__ import annotations

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.protocol.messages import Flood

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
