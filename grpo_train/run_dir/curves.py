"""How a curve is drawn, in the app, in pictures and in reports: its values, or a centered mean over their band; the
numbers on its axes.

A trailing average would show a change later than it was: a centered one has its middle where the values change. Near
both ends it covers less, so that it never looks ahead of or behind them.

Also where a curve changes: what a value was before, and the largest drops and rises.
"""

from __future__ import annotations

import math
import re
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from statistics import median
from typing import NamedTuple

SHARES = re.compile(r"(task/[^/]+/)?(accuracy(/.*)?|ess/.*|groups/.*|frac_.*|completions/clipped_ratio)")
"""Metrics that are shares of a whole. Those of a few per cent (``clip_ratio``, ``mismatch``) keep their own axis."""
LOGARITHMIC = ("grad_norm",)
"""Metrics whose axis is logarithmic at first, as far as their values are positive."""
RAW, LIGHT, STRONG = LEVELS = ("raw", "light", "strong")
NOISY = 3
"""A change of fewer standard errors than this has no direction."""
DENSE = 2
"""Values a column up to which they are a line; of more, their range is a band."""
PART = {LIGHT: 40, STRONG: 10}
"""The mean is over this part of the values …"""
LEAST = {LIGHT: 10, STRONG: 30}
"""… and over no fewer, as single steps differ by chance, but at most half of them."""
BEFORE = 10
"""Values whose median is the level before a step …"""
AFTER = 5
"""… and those whose median is the level from it on."""
LEAST_ROWS = 3
"""On each side; fewer have no level."""
CLEAR = 3.0
"""Times the noise of single values that a change has at least."""
MOST_CHANGES = 20


def mean_over(level: str, count: int, columns: int) -> int:
    """How many values the mean that is the line covers, of ``count`` in ``columns``; 0 = the values are the line."""
    if level == RAW:
        return 0 if count <= DENSE * columns or columns < 1 else -(-DENSE * count // columns)
    return min(max(LEAST[level], count // PART[level]), count // 2)


def centered_means(sums: Sequence[float], counts: Sequence[float], over: int) -> list[float]:
    """The mean of the ``over`` values around the middle of each column, given the sum and the number of its values.

    The values of a column count in part where it is covered in part. 0 for a column without values.
    """
    starts = list(accumulate(counts, initial=0.0))
    found = []
    for column, count in enumerate(counts):
        if not count:
            found.append(0.0)
            continue
        middle = starts[column] + count / 2
        half = max(count / 2, min(over / 2, middle, starts[-1] - middle))
        low, high = middle - half, middle + half
        first, last = bisect_right(starts, low) - 1, bisect_left(starts, high) - 1
        if first >= last:
            found.append(sums[column] / count)
            continue
        ends = sums[first] / counts[first] * (starts[first + 1] - low)
        ends += sums[last] / counts[last] * (high - starts[last])
        found.append((sum(sums[first + 1 : last]) + ends) / (high - low))
    return found


def noise(values: Sequence[float]) -> float:
    """Standard deviation of one value about a curve: of second differences, robustly, so that no slope counts."""
    bends = sorted(abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False))
    if not bends:
        return 0.0
    middle = bends[len(bends) // 2]
    if not middle:
        return math.sqrt(sum(bend * bend for bend in bends) / len(bends) / 6)
    return 1.4826 * middle / math.sqrt(6)


def direction(sums: Sequence[float], counts: Sequence[float], values: Sequence[float], least: float) -> str:
    """Where a curve went from its last quarter but one to its last: ``↗`` ``↘``; ``→`` within ``least`` or its noise.

    Sum and number of the values of each column, none of which is empty, and a value of each, which has the noise.
    """
    quarter = max(1, len(counts) // 4)
    recent, before = slice(-quarter, None), slice(-2 * quarter, -quarter)
    many, few = sum(counts[recent]), sum(counts[before])
    if not few:
        return ""
    change = sum(sums[recent]) / many - sum(sums[before]) / few
    doubt = NOISY * noise(values) * math.sqrt(1 / many + 1 / few)
    return "→" if abs(change) <= max(least, doubt) else "↗" if change > 0 else "↘"


class LevelChange(NamedTuple):
    """Where a curve leaves its level."""

    row: int
    before: float
    after: float


def largest_changes(values: Sequence[float], *, rises: bool) -> list[LevelChange]:
    """The largest drops of a curve, or its largest rises, beyond its noise; no two within BEFORE values.

    A change is the median of the AFTER values from a row on, less the median of the BEFORE values ahead of it. Of the
    rows around one, it is at the row with the largest step between two values.
    """
    sign = 1 if rises else -1
    least = CLEAR * noise(values)
    sizes = [0.0] * len(values)
    for row in range(LEAST_ROWS, len(values) - LEAST_ROWS + 1):
        sizes[row] = sign * (median(values[row : row + AFTER]) - median(values[max(0, row - BEFORE) : row]))
    found: list[LevelChange] = []
    taken: set[int] = set()
    for row in sorted(range(len(values)), key=lambda row: -sizes[row]):
        if len(found) == MOST_CHANGES or sizes[row] <= least:
            break
        if row in taken:
            continue
        around = range(max(1, row - BEFORE), min(len(values), row + BEFORE))
        near = [one for one in around if sizes[one] >= 0.5 * sizes[row]]
        place = max(near, key=lambda one: sign * (values[one] - values[one - 1]))
        taken.update(around)
        before = median(values[max(0, place - BEFORE) : place])
        found.append(LevelChange(place, before, median(values[place : place + AFTER])))
    return found


NICE = (1, 2, 2.5, 5, 10, 20)
"""Distances of even ticks, times a power of ten."""
SMALLEST = 1e-290
"""A smaller span has no ticks: a power of ten below it may be 0."""
DAY_S = 86_400.0
CLOCK_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200)
"""Distances of ticks on a clock."""
LONG_S = 300 * DAY_S
"""A longer time needs the year."""
LAST_DATE = datetime(9990, 1, 1).timestamp()
"""A box may log any number as a time; beyond, there is no calendar."""


def ticks(low: float, high: float, count: int) -> list[float]:
    """At most ``count`` (≥ 2) even, round numbers in [low, high]; the two ends if no round ones fit."""
    span = high - low
    if not math.isfinite(span) or span < SMALLEST:
        return [low]
    raw = span / max(1, count - 1)
    power = 10.0 ** math.floor(math.log10(raw))
    for factor in NICE:
        size = factor * power
        first = math.ceil(low / size - 1e-9)
        last = math.floor(high / size + 1e-9)
        found = [min(max(index * size, low), high) for index in range(first, last + 1)]
        if 2 <= len(found) <= count:
            return found
    return [low, high]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """As :func:`ticks`, on an axis of logarithms: those of decades, or of round numbers where decades are few."""
    for digits in ((1, 2, 3, 4, 5, 6, 7, 8, 9), (1, 2, 5), (1, 3), (1,)):
        decades = range(math.floor(low), math.floor(high) + 1) if high - low <= count else ()
        levels = [decade + math.log10(digit) for decade in decades for digit in digits]
        found = [level for level in levels if low <= level <= high]
        if 2 <= len(found) <= count:
            return found
    size = math.ceil((high - low) / (count - 1)) if math.isfinite(high - low) else 0
    for start in (math.ceil(low / size) * size, math.ceil(low)) if size > 1 else ():
        if whole := range(start, math.floor(high) + 1, size):
            return [float(decade) for decade in whole]
    return ticks(low, high, count)


def time_ticks(low: float, high: float, count: int) -> list[float]:
    """At most ``count`` times, even on the clock of this machine: the full hours, or the midnights, of its time zone.

    An hour that the clock skips has no tick, and one that it repeats has one.
    """
    span = high - low
    if not (0 <= low < high < LAST_DATE):
        return ticks(low, high, count)
    step = next((size for size in CLOCK_S if span / size < count), 0.0)
    if not step:
        days = max(span / DAY_S / max(1, count - 1), 1.0)
        power = 10 ** math.floor(math.log10(days))
        step = DAY_S * next(size for size in (power, 2 * power, 5 * power, 10 * power) if size >= days)
    day = datetime.fromtimestamp(low).replace(hour=0, minute=0, second=0, microsecond=0)
    if step > DAY_S:
        day -= timedelta(days=day.toordinal() % (step / DAY_S))
    size = timedelta(seconds=step)
    at = day + (datetime.fromtimestamp(low) - day) // size * size
    end = datetime.fromtimestamp(high)
    found = []
    while at <= end + size:  # the clock may be put back within the range
        place = at.timestamp()
        if low <= place <= high and datetime.fromtimestamp(place) == at:
            found.append(place)
        at += size
    return found[:count] if len(found) > 1 else found or [low]


def time_labels(places: Sequence[float]) -> list[str]:
    """Times of day; with the date on the first of each day, where there are several days."""
    if not places or not all(0 <= place < LAST_DATE for place in places):
        return [time.strftime("%H:%M", time.localtime(place)) for place in places]
    times = [datetime.fromtimestamp(place) for place in places]
    if places[-1] - places[0] > LONG_S:
        return [f"{at:%Y-%m-%d}" for at in times]
    inner = times[1:-1]
    are_days = len(inner) > 1 and not any(at.hour or at.minute or at.second for at in inner)
    form = "%H:%M:%S" if places[-1] - places[0] < 120 or any(at.second for at in inner) else "%H:%M"
    found, shown = [], times[0].date() if times[0].date() == times[-1].date() else None
    for place, at in enumerate(times):
        date, shown, before = f"{at:%b} {at.day} ", at.date(), shown
        if are_days and 0 < place < len(times) - 1:
            found.append(date.strip())
        else:
            found.append((date if shown != before else "") + at.strftime(form))
    return found


def decimals_of(step: float) -> int:
    """The decimals that all multiples of a distance of ticks need: 2 of 0.25."""
    scaled = (step * 10.0**count for count in range(16))
    return next((count for count, size in enumerate(scaled) if math.isclose(round(size), size, rel_tol=1e-6)), 16)


def apart(levels: Sequence[float], ends: Sequence[float], least: float) -> list[float]:
    """The ticks that leave room for the labels of the extremes: those at least so far from each."""
    return [level for level in levels if all(abs(level - end) >= least for end in ends)]
