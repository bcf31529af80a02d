"""What time on a box costs: the one place for that arithmetic."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from grpo_train.history.spans import Span

HOUR = 3600.0


def dollars(price_per_hour: float, seconds: float) -> float:
    """Cost of a time at one price."""
    return price_per_hour * seconds / HOUR


@dataclass(frozen=True)
class Prices:
    """The prices of a box in dollars per hour, each with the time from which it holds; the first holds before, too."""

    steps: tuple[tuple[float, float], ...]
    """Time in seconds since the epoch, and price; ascending, at least one."""

    @staticmethod
    def of(prices: Mapping[float, float]) -> Prices | None:
        """From times and prices; None without any."""
        return Prices(tuple(sorted(prices.items()))) if prices else None

    def at(self, time: float) -> float:
        """The price at a time."""
        return self.steps[max(0, bisect_right(self.steps, (time, math.inf)) - 1)][1]

    def cost(self, spans: Iterable[Span]) -> float:
        """Cost of spans of time, each part at its price."""
        changes = [at for at, _ in self.steps[1:]]
        total = 0.0
        for start, end in spans:
            for change in changes:
                if start < change < end:
                    total += dollars(self.at(start), change - start)
                    start = change
            total += dollars(self.at(start), max(0.0, end - start))
        return total


@dataclass(frozen=True)
class Gain:
    """Held-out accuracy that a run gained, with its 95 % interval, as shares."""

    dataset: str
    first_step: int
    last_step: int
    gained: float
    low: float
    high: float

    def dollars_per_point(self, cost: float) -> tuple[float, float, float] | None:
        """What one percentage point cost, with its interval (infinite where no gain is within the interval); None
        if nothing was gained."""
        if self.gained <= 0:
            return None
        return tuple(cost / (100 * each) if each > 0 else math.inf for each in (self.gained, self.high, self.low))  # type: ignore[return-value]


def gain_of(dataset: str, first: Mapping[str, float], last: Mapping[str, float]) -> Gain | None:
    """The gain between two evaluated steps with ``step``, ``accuracy``, ``ci_low`` and ``ci_high``.

    The interval is that of Newcombe (1998, method 10) for independent samples: for the same problems it is too wide,
    never too narrow, as the answers to a problem correlate.
    """
    if not {"accuracy", "ci_low", "ci_high"} <= first.keys() & last.keys():
        return None
    gained = last["accuracy"] - first["accuracy"]
    below = math.hypot(last["accuracy"] - last["ci_low"], first["ci_high"] - first["accuracy"])
    above = math.hypot(last["ci_high"] - last["accuracy"], first["accuracy"] - first["ci_low"])
    return Gain(dataset, int(first["step"]), int(last["step"]), gained, gained - below, gained + above)
