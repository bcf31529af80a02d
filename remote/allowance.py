"""Amount that a box may send: what the client asked for, and a modest rate of everything else."""

from __future__ import annotations

import time

from remote.protocol.messages import Flood

MIB = 1 << 20
FRAME_COST = 4_096
"""Bytes that a frame counts for besides its own, so that many small ones are not cheaper than a large one."""
CREDIT_WORTH = 64
"""Bytes that one byte of log credit is worth: the frames of granted bytes are free unless they are tiny."""


class Allowance:
    """A budget in bytes that refills with time. Everything that a box sends and that costs work *must* be counted."""

    def __init__(self, name: str, burst: int = 32 * MIB, rate: int = 2 * MIB) -> None:
        """``burst`` bytes at once (two of the longest frames), then ``rate`` bytes/s."""
        self._name, self._burst, self._rate = name, burst, rate
        self._left = float(burst)
        self._refilled = time.monotonic()

    def grant(self, count: int) -> None:
        """Allow ``count`` more bytes, up to the burst: the client asked for them."""
        self._left = min(self._burst, self._left + count)

    def spend(self, count: int) -> None:
        """Count received bytes. Raises Flood once they exceed the allowance."""
        now = time.monotonic()
        self._left = min(self._burst, self._left + (now - self._refilled) * self._rate)
        self._refilled = now
        self._left -= count
        if self._left < 0:
            raise Flood(f"{self._name} sent more than this program asked for: over {self._burst / MIB:.0f} MiB at once")
