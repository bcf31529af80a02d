"""Curves: metrics reduced to pixel columns, and all metrics at a glance."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import Any

from grpo_train.run_dir.curves import largest_changes
from remote.index.lines import MISSING, logged_number
from remote.index.train_log import STEP, TIME, KnownColumns, finite_of, is_sorted
from remote.protocol.frames import pack
from remote.protocol.logs import COLUMNS, HUGE, LevelChangesRequest, SeriesRequest

AXES = {"step": STEP, "time": TIME, "tokens": "num_tokens"}
MAX_X = 1e15


def axis_of(snapshot: KnownColumns, name: str) -> Axis:
    """One of X_AXES."""
    return Axis(run_seconds(snapshot) if name == "seconds" else snapshot.column(AXES[name]))


def run_seconds(snapshot: KnownColumns) -> array[float]:
    """Duration of the steps up to each row; of a log without it, the time since its first row."""
    took = [value if 0 <= value < HUGE else 0.0 for value in snapshot.column("time/step")]
    if any(took):
        if not snapshot.is_whole:  # each row stands for those that are not known
            steps = snapshot.column(STEP)
            took = [
                value * max(1.0, step - before) for value, step, before in zip(took, steps, [0.0, *steps], strict=False)
            ]
        return array("d", accumulate(took))
    times = snapshot.column(TIME)
    start = min((time for time in times if abs(time) <= MAX_X), default=0.0)
    return array("d", [time - start if abs(time) <= MAX_X else MISSING for time in times])


class Axis:
    """The x of each row, in order. Rows without a usable x are left out."""

    def __init__(self, values: array[float]) -> None:
        self.xs = values
        self.order: list[int] | None = None
        """The row at each place; None where it is the place itself."""
        if not values or (values[0] >= -MAX_X and values[-1] <= MAX_X and is_sorted(values)):
            return
        usable = [row for row, x in enumerate(values) if abs(x) <= MAX_X]
        self.order = sorted(usable, key=values.__getitem__)
        self.xs = array("d", [values[row] for row in self.order])

    def bounds(self, low: float, high: float, width: int) -> list[int]:
        """The place at which each pixel column begins, and the end of the last one."""
        start, end = bisect_left(self.xs, low), bisect_right(self.xs, high)
        span = high - low
        if span <= 0:
            return [start, *[end] * width]

        def column(x: float) -> int:
            return min(width - 1, int((x - low) / span * width))

        found = [start]
        for pixel in range(1, width):
            found.append(bisect_left(self.xs, pixel, found[-1], end, key=column))
        return [*found, end]


def nearest(xs: array[float], x: float) -> int:
    """The last place with the x that is nearest to one."""
    after = bisect_right(xs, x)
    if after == 0 or (after < len(xs) and xs[after] - x < x - xs[after - 1]):
        return bisect_right(xs, xs[after]) - 1
    return after - 1


def levels_before(snapshot: KnownColumns, metrics: Sequence[str], rows: Sequence[int]) -> dict[str, float]:
    """The median of the finite values of each metric in some rows. Reads no column whole."""
    found = {name: finite_of(array("d", [snapshot.at(name, row) for row in rows])) for name in metrics}
    return {name: median(values) for name, values in found.items() if values}


def level_changes(snapshot: KnownColumns, request: LevelChangesRequest) -> list[dict[str, Any]]:
    """The rows of the reply to a ``level_changes`` request."""
    axis, values, steps = axis_of(snapshot, request.x), snapshot.column(request.metric), snapshot.column(STEP)
    low = 0 if request.low is None else bisect_left(axis.xs, request.low)
    high = len(axis.xs) if request.high is None else bisect_right(axis.xs, request.high)
    order = axis.order if axis.order is not None else range(len(axis.xs))
    places = [place for place in range(low, high) if -HUGE < values[order[place]] < HUGE]
    found = largest_changes([values[order[place]] for place in places], rises=request.rises)
    return [
        {
            "x": axis.xs[places[change.row]], "step": steps[order[places[change.row]]],
            "before": change.before, "after": change.after,
        }
        for change in found
    ]  # fmt: skip


def reduce(values: array[float], axis: Axis, bounds: list[int]) -> list[array[float]]:
    """The columns of one metric, in the order of :class:`remote.protocol.logs.Columns`."""
    if axis.order is not None:
        values = array("d", [values[row] for row in axis.order])
    found = [array("d", bytes(8 * (len(bounds) - 1))) for _ in range(COLUMNS)]
    lows, highs, firsts, lasts, sums, counts, gaps = found
    for column in range(len(bounds) - 1):
        start, end = bounds[column], bounds[column + 1]
        if start == end:
            continue
        kept, total, bad = _usable(values[start:end])
        gaps[column] = bad
        if not kept:
            continue
        lows[column], highs[column] = min(kept), max(kept)
        firsts[column], lasts[column] = kept[0], kept[-1]
        sums[column], counts[column] = total, len(kept)
    return found


def _usable(values: array[float]) -> tuple[Sequence[float], float, int]:
    """The finite values, their sum, and the number of NaN and infinite ones."""
    if not values:
        return values, 0.0, 0
    total = sum(values)
    # a sum within the bounds has neither NaN nor infinity in it; what is missing is the lowest
    if -HUGE < total < HUGE and min(values) > -HUGE and max(values) < HUGE:
        return values, total, 0
    kept = finite_of(values)
    return kept, sum(kept), len(values) - len(kept) - values.count(MISSING)


def series(snapshot: KnownColumns, request: SeriesRequest) -> dict[str, Any]:
    """The reply to a ``series`` request, without what all replies have."""
    axis = axis_of(snapshot, request.x)
    xs = axis.xs
    first, last = (xs[0], xs[-1]) if xs else (None, None)
    low = (first or 0.0) if request.low is None else request.low
    high = (last or 0.0) if request.high is None else request.high
    high = max(low, high)
    bounds = axis.bounds(low, high, request.width)
    rows = []
    for metric in request.metrics:
        columns = reduce(snapshot.column(metric), axis, bounds)
        at = snapshot.stats(metric).last_row
        rows.append(
            {
                "metric": metric,
                "columns": pack(columns),
                "last": logged_number(snapshot.at(metric, at)) if at >= 0 else None,
                "last_step": snapshot.at(STEP, at) if at >= 0 else None,
            }
        )
    return {
        "x": request.x,
        "first": first,
        "last": last,
        "low": low,
        "high": high,
        "width": request.width,
        "series": rows,
    }


RECENT = 20
SAMPLE = 2_000
"""Values of the run that the recent ones are compared with, evenly spaced."""
MOST = 1e6


def metrics(snapshot: KnownColumns) -> dict[str, Any]:
    """The reply to a ``metrics`` request, without what all replies have."""
    steps = snapshot.column(STEP)
    rows = []
    for name in snapshot.names:
        stats = snapshot.stats(name)
        if stats.last_row < 0:
            continue
        values = snapshot.column(name)
        found = stats.count > 0
        rows.append(
            {
                "name": name,
                "last": logged_number(values[stats.last_row]),
                "last_step": steps[stats.last_row],
                "count": stats.count,
                "gaps": stats.gaps,
                "min": stats.min if found else None,
                "min_step": steps[stats.min_row] if found else None,
                "max": stats.max if found else None,
                "max_step": steps[stats.max_row] if found else None,
                "constant": found and stats.min == stats.max and not stats.gaps,
                "unusual": unusual(values),
            }
        )
    return {"first_step": min(steps, default=None), "last_step": max(steps, default=None), "metrics": rows}


def unusual(values: array[float]) -> float:
    """Robust z-score of the last values: how far their median is from the run's, in standard deviations as its median
    absolute deviation estimates them. Where that is 0, the mean absolute deviation takes its place (Iglewicz and
    Hoaglin, 1993)."""
    kept = finite_of(values[:: max(1, len(values) // SAMPLE)])
    recent = finite_of(values[-RECENT:])
    if len(kept) < 3 * RECENT or not recent:  # the last ones would be half of what they are compared with
        return 0.0
    center = median(kept)
    distances = [abs(value - center) for value in kept]
    spread = 1.4826 * median(distances) or 1.2533 * sum(distances) / len(distances)
    if not spread:
        return 0.0
    score = (median(recent) - center) / spread
    return max(-MOST, min(MOST, score)) if score == score else 0.0
