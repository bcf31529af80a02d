"""What time on a box costs, and what is said of a run's time and cost before it starts: the one place for both."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from grpo_train.history.spans import Span
from grpo_train.run_dir.display import duration, money

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


@dataclass(frozen=True)
class Forecast:
    """How long a run may take, where that comes from, and how sure it is."""

    low: float | None = None
    """Seconds with the likely lengths of completions; None = no estimate, and ``basis`` says why."""
    high: float | None = None
    """Seconds with the longest completions that the config allows."""
    basis: str = ""
    """What was measured: ``bench of NVIDIA H100 80GB HBM3, qwen2_5_15 (2026-11-26)``."""
    assumed: str = ""
    """The lengths that are assumed: ``completions of 256 to 512 tokens``."""
    factor: float = 1.0
    """The measured time was within this factor of the estimate in most trials (docs/performance.md)."""
    left_out: str = ""
    """What is not in it; "" where all is."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Forecast:
        """What :meth:`to_json` wrote; no estimate without values."""
        return cls(**{name: values[name] for name in cls.__dataclass_fields__ if name in values})

    def lines(self, price_per_hour: float | None = None) -> list[str]:
        """Time and cost with how sure they are, then where they come from; empty if nothing is known. What ``grpo-train
        plan``, the launch form and ``grpo-tui launch --dry-run`` say."""
        if self.low is None or self.high is None:
            return [f"no estimate: {self.basis}"] if self.basis else []
        ends = self.low, self.high
        said = f"about {span(*map(duration, ends))}"
        if price_per_hour is not None:
            cost = span(*(money(dollars(price_per_hour, end)) for end in ends))
            said += f", {cost} at {money(price_per_hour)}/h"
        origin = [f"from {self.basis}", self.assumed, self.left_out and f"without {self.left_out}"]
        sure = f"within a factor of {self.factor:g}{self.assumed and ' at these lengths'}"
        return [f"{said} · {sure}", " · ".join(filter(None, origin))]


def span(low: str, high: str) -> str:
    """Two ends as text; one where they read the same."""
    return low if low == high else f"{low} to {high}"
