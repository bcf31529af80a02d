"""How a curve is drawn, in the app, in pictures and in reports: its values, or a centered mean over their band.

A trailing average would show a change later than it was: a centered one has its middle where the values change. Near
both ends it covers less, so that it never looks ahead of or behind them.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

SHARES = re.compile(r"(task/[^/]+/)?(accuracy(/.*)?|ess/.*|groups/.*|frac_.*|completions/clipped_ratio)")
"""Metrics that are shares of a whole. Those of a few per cent (``clip_ratio``, ``mismatch``) keep their own axis."""
RAW, LIGHT, STRONG = LEVELS = ("raw", "light", "strong")
DENSE = 2
"""Values a column up to which they are a line; of more, their range is a band."""
PART = {LIGHT: 40, STRONG: 10}
"""The mean is over this part of the values …"""
LEAST = {LIGHT: 10, STRONG: 30}
"""… and over no fewer, as single steps differ by chance, but at most half of them."""


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
