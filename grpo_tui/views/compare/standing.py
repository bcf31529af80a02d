"""Where runs are at the same step, number of tokens, GPU time and cost: pure functions of their logs. No Textual.

A track has what a run had reached at the end of each pixel column that the box reduced its log to; between two of them
it is interpolated. The reward at a place is the mean of the last values up to there, of as many for all runs.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from grpo_train.history.cost import dollars
from grpo_train.run_dir.curves import LEAST, LIGHT
from grpo_train.run_dir.display import duration
from grpo_tui.box.formatting import compact_number, money
from remote.protocol.logs import Columns
from remote.protocol.rows import UNREADABLE

REWARD = "reward"
TRACKED = (REWARD, ":step", ":time", "num_tokens", "time/step")
"""The metrics that a track is made from. Those with a colon are the step and the time of each row."""
SHORTEST = 0.2
"""Runs shorter than this share of the second longest do not lower what is compared at: they show that they had
ended."""
GOAL = 0.75
"""The reward to reach is this far between the lowest first and the highest reward of the runs."""


@dataclass(frozen=True)
class Track:
    """One run: arrays of equal length, each but ``sums`` and ``counts`` ascending."""

    step: array[float]
    sums: array[float]
    """Of the rewards in each column."""
    counts: array[float]
    """Their number."""
    tokens: array[float]
    """Empty if they are not logged."""
    seconds: array[float]
    """Of the steps so far, without the time in which the run was stopped."""

    def axis(self, name: str) -> array[float]:
        found: array[float] = getattr(self, name)
        return found

    def means(self, over: int) -> array[float]:
        """The mean of the last ``over`` rewards at the end of each column, or of all so far where they are fewer."""
        found = array("d")
        for end in range(1, len(self.sums) + 1):
            total, left, column = 0.0, float(over), end
            while left and column:
                column -= 1
                part = min(1.0, left / self.counts[column])
                total += part * self.sums[column]
                left -= part * self.counts[column]
            found.append(total / (over - left))
        return found

    def at(self, axis: str, x: float, over: int) -> float | None:
        """The mean reward at a step, number of tokens or second; None beyond the run's last."""
        return interpolate(self.axis(axis), self.means(over), x)

    def full(self, over: int) -> list[tuple[float, float]]:
        """The steps with ``over`` rewards up to them, each with their mean."""
        found = zip(self.step, self.means(over), accumulate(self.counts), strict=True)
        return [(step, mean) for step, mean, rows in found if rows >= over]

    def reaches(self, reward: float, over: int) -> float | None:
        """The first step with a mean of ``over`` rewards of at least ``reward``; None without one."""
        return next((step for step, mean in self.full(over) if mean >= reward), None)


def mean_of(tracks: Sequence[Track | None]) -> int:
    """How many rewards all means are of: at most half of the longest run, and no fewer than the fullest column has."""
    counts = [track.counts for track in tracks if track is not None]
    longest, fullest = max(map(sum, counts), default=0), max(map(max, counts), default=1)
    return max(1, min(LEAST[LIGHT], int(longest // 2)), math.ceil(fullest))


def track_of(reply: Mapping[str, Any]) -> Track | None:
    """The track in a ``series`` reply of :data:`TRACKED`; None without a reward."""
    found: dict[str, Columns] = {row["metric"]: row["columns"] for row in reply["series"] if UNREADABLE not in row}
    reward = found.get(REWARD)
    if reward is None or ":step" not in found:
        return None
    places = [i for i, count in enumerate(reward.count) if count]
    if not places:
        return None
    return Track(
        step=_ascending(found[":step"], places),
        sums=array("d", [reward.sum[i] for i in places]),
        counts=array("d", [reward.count[i] for i in places]),
        tokens=_ascending(found.get("num_tokens"), places),
        seconds=_seconds(found, places),
    )


def _ascending(columns: Columns | None, places: Sequence[int]) -> array[float]:
    """The highest value so far at the end of each column in ``places``."""
    if columns is None or not any(columns.count):
        return array("d")
    highest, kept, found = -math.inf, iter(places), array("d")
    place = next(kept, None)
    for i, count in enumerate(columns.count):
        if count:
            highest = max(highest, columns.max[i])
        if i == place:
            found.append(highest)
            place = next(kept, None)
    first = next((value for value in found if value > -math.inf), 0.0)
    return array("d", [max(value, first) for value in found])


def _seconds(found: Mapping[str, Columns], places: Sequence[int]) -> array[float]:
    """Duration of the steps so far. Of a log without ``time/step``, the time since its first row."""
    took = found.get("time/step")
    if took is None or not any(took.count):
        times = _ascending(found.get(":time"), places)
        start = min((found[":time"].min[i] for i, n in enumerate(found[":time"].count) if n), default=0.0)
        return array("d", [each - start for each in times]) if times else times
    total, kept, sums = 0.0, iter(places), array("d")
    place = next(kept, None)
    for i, seconds in enumerate(took.sum):
        total += max(0.0, seconds) if took.count[i] else 0.0
        if i == place:
            sums.append(total)
            place = next(kept, None)
    return sums


def interpolate(xs: Sequence[float], ys: Sequence[float], x: float) -> float | None:
    """The value at ``x`` of a line through points with ascending ``xs``; before them the first, after them None."""
    if not len(xs) or x > xs[-1] * (1 + 1e-12):
        return None
    right = min(len(xs) - 1, bisect_left(xs, x))
    if right == 0:
        return ys[0]
    low, high = xs[right - 1], xs[right]
    if high <= low:
        return ys[right]
    return ys[right - 1] + (ys[right] - ys[right - 1]) * (min(x, high) - low) / (high - low)


def round_down(value: float) -> float:
    """A number with its first two digits: 1,840 becomes 1,800."""
    if value <= 0 or not math.isfinite(value):
        return 0.0
    power: float = 10.0 ** (math.floor(math.log10(value)) - 1)
    return math.floor(value / power + 1e-9) * power


@dataclass(frozen=True)
class StandingRow:
    """One line of the table: a label, and a value per run; None where a run was not there."""

    label: str
    values: list[float | None]


def table(
    tracks: Sequence[Track | None], shares: Sequence[int], price: float | None, unit: str = "GPU"
) -> list[StandingRow]:
    """What each run's mean reward was at the same step, tokens, GPU time and cost.

    ``shares``: processes of each run, each on a GPU of its own. ``price``: of the box, in dollars per hour.
    """
    rows, over = [], mean_of(tracks)
    scales: list[tuple[str, Callable[[int], float], Callable[[float], str]]] = [
        ("step", lambda i: 1.0, lambda x: f"step {int(x):,}"),
        ("tokens", lambda i: 1.0, lambda x: f"tokens {compact_number(x)}"),
        ("seconds", lambda i: float(max(1, shares[i])), lambda x: f"{unit} time {duration(x)}"),
    ]
    if price:
        scales.append(("seconds", lambda i: dollars(price, 1.0), lambda x: f"cost {money(x)}"))
    for axis, scale, label in scales:
        ends = [
            track.axis(axis)[-1] * scale(i) if track is not None and len(track.axis(axis)) else None
            for i, track in enumerate(tracks)
        ]
        known = sorted(end for end in ends if end)
        if not known:
            continue
        second_longest = known[-2:][0]
        at = round_down(next(end for end in known if end >= SHORTEST * second_longest))
        if axis == "seconds" and label is scales[2][2]:
            at = _whole_time(at)
        values = [track.at(axis, at / scale(i), over) if track is not None else None for i, track in enumerate(tracks)]
        rows.append(StandingRow(label(at), values))
    return rows


def goal(tracks: Sequence[Track | None]) -> float | None:
    """A round reward on the way from the lowest first reward to the highest; None if no run has improved."""
    over = mean_of(tracks)
    there = [means for track in tracks if track is not None and (means := [mean for _, mean in track.full(over)])]
    if not there:
        return None
    first, best = min(means[0] for means in there), max(map(max, there))
    spread = best - first
    if spread <= 1e-9 * max(1.0, abs(best)):
        return None
    digit = 10.0 ** math.floor(math.log10(spread / 2))
    return min(best, math.floor((first + GOAL * spread) / digit) * digit)


def _whole_time(seconds: float) -> float:
    """Seconds cut to what two units show: minutes from ten of them on, hours from a day on."""
    size = 1 if seconds < 600 else 60 if seconds < 86_400 else 3_600
    return seconds // size * size
