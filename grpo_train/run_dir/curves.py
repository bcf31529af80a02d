"""How a curve is drawn, in the app, in pictures and in reports: its values, or a centered mean over their band.

A trailing average would show a change later than it was: a centered one has its middle where the values change. Near
both ends it covers less, so that it never looks ahead of or behind them.

Also where a curve changes: what a value was before, and the largest drops and rises.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import NamedTuple

SHARES = re.compile(r"(task/[^/]+/)?(accuracy(/.*)?|ess/.*|groups/.*|frac_.*|completions/clipped_ratio)")
"""Metrics that are shares of a whole. Those of a few per cent (``clip_ratio``, ``mismatch``) keep their own axis."""
RAW, LIGHT, STRONG = LEVELS = ("raw", "light", "strong")
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
