"""The 1st to 99th percentile of a curve, for an axis without its extremes, and how many points that leaves out.

The laptop has pixel columns, not all values: of a column it knows the lowest and the highest value, how many there are
and their sum. The others are taken to be at their mean. No Textual.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

from grpo_tui.model.curves import Mark

SHARE = 0.01


def percentiles(marks: Sequence[Mark]) -> tuple[float, float]:
    """The 1st and the 99th percentile of the values in some marks, interpolated."""
    points: list[tuple[float, float]] = []
    for mark in marks:
        points.append((mark.low, 1.0))
        if mark.rows > 1:
            points.append((mark.high, 1.0))
        if mark.rows > 2:
            points.append(((mark.total - mark.low - mark.high) / (mark.rows - 2), mark.rows - 2))
    points.sort()
    ends = list(accumulate(weight for _, weight in points))

    def at(share: float) -> float:
        place = share * (ends[-1] - 1)
        low, high = (
            points[min(len(points) - 1, bisect_right(ends, whole))][0] for whole in (place // 1, place // 1 + 1)
        )
        return low + (high - low) * (place % 1)

    return at(SHARE), at(1 - SHARE)


def left_out(marks: Sequence[Mark], low: float, high: float) -> str:
    """``3 points above, 1 below`` a range; ``≥3`` where columns may have more than their extremes there."""
    parts: list[str] = []
    for word, outside in (
        ("above", [one for one in marks if one.high > high]),
        ("below", [one for one in marks if one.low < low]),
    ):
        whole = [one for one in outside if one.low > high or one.high < low]
        count = len(outside) + round(sum(one.rows - 1 for one in whole))
        is_exact = all(one.rows <= 2 for one in outside if one not in whole)
        if count:
            noun = "" if parts else " point" if count == 1 else " points"
            parts.append(f"{'' if is_exact else '≥'}{count:,}{noun} {word}")
    return ", ".join(parts)
