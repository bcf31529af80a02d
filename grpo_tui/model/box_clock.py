"""The box's clock against this machine's: ages stay right although either is set. No Textual."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from grpo_train.run_dir.display import duration

SET_S = 10.0
"""A larger change of the difference between the clocks is a clock that was set."""
TOLERATED_S = 5.0
"""A larger difference between the clocks is a warning."""
SET_CLOCK = "sudo timedatectl set-ntp true"
"""The command that sets the clock of a box, and keeps it right."""
KEPT = 20
"""Settings of the box's clock that are remembered."""


class BoxClock:
    """The measured difference between the clocks, and those before the box's clock was set."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._skew_s = 0.0
        """Seconds to add to a time on the box's clock to get this machine's."""
        self._skews: deque[tuple[float, float]] = deque(maxlen=KEPT)
        """The differences and since when, newest first."""
        self._own: float | None = None
        """This machine's clock against its monotonic one at the last measurement; None before the first."""

    def measured(self, skew_s: float) -> None:
        """Take a measurement."""
        own, before = self._now() - time.monotonic(), self._own
        if before is None or abs(own - before) > SET_S:  # this machine's clock was set, or it was suspended
            self._skews.clear()
        if not self._skews:
            self._skews.append((skew_s, -math.inf))
        elif abs(skew_s - self._skew_s) > SET_S:
            self._skews.appendleft((skew_s, self._now()))
        else:
            self._skews[0] = (skew_s, self._skews[0][1])
        self._skew_s, self._own = skew_s, own

    @property
    def skew_s(self) -> float:
        """Seconds to add to a time on the box's clock to get this machine's."""
        return self._skew_s

    def age(self, at: float | None) -> float | None:
        """Seconds since a time on the box's clock, by the clock that the box had when it wrote it."""
        if at is None:
            return None
        now = end = self._now()
        for skew_s, since in self._skews:
            if since - SET_S <= at + skew_s <= end + SET_S:
                return max(0.0, now - (at + skew_s))
            end = since
        return max(0.0, now - (at + self._skew_s))


def clock_check(skew_s: float) -> dict[str, Any]:
    """The finding about a box's clock, in the form of the doctor's."""
    if abs(skew_s) <= TOLERATED_S:
        return {"name": "clock", "ok": True, "detail": f"within {max(1.0, abs(skew_s)):.0f} s"}
    side = "behind" if skew_s > 0 else "ahead"
    return {
        "name": "clock",
        "ok": False,
        "detail": f"{duration(abs(skew_s))} {side}",
        "hint": f"{SET_CLOCK} (on the box)",
    }
