"""Curves of a run's metrics: pixel columns that the box reduced, continued by rows that arrived since. No Textual.

The log stays on the box. A view asks for its metrics at the width of its charts: a few kilobytes for any number of
steps.

The laptop has pixel columns, not all values: of a column it knows the lowest and the highest value, how many there are
and their sum. The others are taken to be at their mean.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median
from typing import Any, NamedTuple

from grpo_train.run_dir.curves import LIGHT, RAW, centered_means, direction, mean_over
from grpo_train.run_dir.files import to_float
from grpo_tui.box.asking import SOON_S, Asking, monotonic
from grpo_tui.box.log import RunLogs, TrainLogRow, row_step, row_time
from remote.protocol.logs import HUGE, Columns
from remote.protocol.rows import UNREADABLE

MOST_LIVE = 256
"""Rows that arrived since an answer before the box is asked again …"""
LIVE_SHARE = 0.02
"""… or this share of the rows in the answer, whichever is more."""
DRAW_S = 0.9
"""Rows that arrive faster are drawn together: a picture of four charts costs as much as a hundred rows."""
LIVE_KEPT = 20_000
"""Rows that are drawn beside an answer, where the box gives no newer one."""
SPIKE = 3.0
"""A value this many times the usual one is pointed out."""
FLAT = 1e-6
"""Relative change below which a curve does not move."""
LEAST_FOR_DIRECTION = 12
"""Values from which on a curve has a direction."""
AXES = ("step", "tokens", "time", "seconds")
"""``seconds`` are shown as their cost, where the box has a price."""
STEP = ":step"
"""The metric that is the step of each row, where the axis is another one."""


@dataclass(frozen=True)
class Window:
    """What the charts of a view show of a run: all of it, the newest ``span``, or ``low`` to ``high``."""

    x: str = "step"
    low: float | None = None
    high: float | None = None
    span: float | None = None

    @property
    def follows(self) -> bool:
        """Whether it moves with new rows."""
        return self.high is None

    def zoomed(self, ends: tuple[float, float], center: float, factor: float) -> Window:
        """``factor`` times as much around ``center``, which stays where it is; ``ends`` are those shown now."""
        low, high = (center + (end - center) * factor for end in ends)
        return replace(self, low=low, high=high, span=None)

    def following(self, ends: tuple[float, float]) -> Window:
        """As wide as now, at the newest row."""
        return replace(self, low=None, high=None, span=ends[1] - ends[0])

    def whole(self) -> Window:
        return replace(self, low=None, high=None, span=None)


class Mark(NamedTuple):
    """The finite values of a metric in one pixel column, or of one row."""

    x: float
    first: float
    low: float
    high: float
    last: float
    broken: bool
    """Whether a NaN lies between it and the mark before: the line breaks."""
    rows: float = 1
    """Finite values."""
    total: float = 0.0
    """Sum of the values, of more than one."""

    @property
    def sum(self) -> float:
        return self.total if self.rows > 1 else self.last


class Curve:
    """One metric: the marks of the box's columns, then one per row since."""

    def __init__(self, row: Mapping[str, Any], low: float, high: float) -> None:
        columns: Columns = row["columns"]
        self.marks: list[Mark] = []
        self.gaps = array("d")
        """Where NaN and infinite values are."""
        self.count = 0
        """Finite values."""
        self.last: float | None = to_float(row.get("last"))
        """Value of the newest row that has the metric; may be NaN or infinite."""
        self._broken = False
        self._means: tuple[object, list[Mark]] = (None, [])
        width = len(columns.count)
        for index, count in enumerate(columns.count):
            x = low + (index + 0.5) * (high - low) / width
            gap = columns.gaps[index] > 0
            if gap:
                self.gaps.append(x)
                self._broken = True
            if count:
                self.count += int(count)
                self.marks.append(
                    Mark(
                        x, columns.first[index], columns.min[index], columns.max[index], columns.last[index],
                        self._broken, count, columns.sum[index],
                    )
                )  # fmt: skip
                self._broken = gap

    def append(self, x: float, value: float) -> None:
        """Add the value of a newer row."""
        self.last = value
        if not abs(value) < HUGE:
            self.gaps.append(x)
            self._broken = True
            return
        self.marks.append(Mark(x, value, value, value, value, self._broken))
        self._broken = False
        self.count += 1

    def at(self, x: float, over: int = 0) -> Mark | None:
        """The mark nearest to ``x``; with ``over``, of :meth:`means`."""
        return min(self.means(over) if over else self.marks, key=lambda mark: abs(mark.x - x), default=None)

    def means(self, over: int) -> list[Mark]:
        """The marks with the mean of the ``over`` values around each as their only value."""
        if self._means[0] != (over, self.count, len(self.marks)):
            found = centered_means([mark.sum for mark in self.marks], [mark.rows for mark in self.marks], over)
            means = [
                mark._replace(first=mean, low=mean, high=mean, last=mean)
                for mark, mean in zip(self.marks, found, strict=True)
            ]
            self._means = ((over, self.count, len(self.marks)), means)
        return self._means[1]

    def direction(self) -> str:
        """Where the curve went over the last quarter, beyond its noise: ``↗`` ``→`` ``↘``; "" of a few values."""
        if self.count < LEAST_FOR_DIRECTION:
            return ""
        smooth = [mark.last for mark in self.means(mean_over(LIGHT, self.count, 0))]
        least = max(0.07 * (max(smooth) - min(smooth)), FLAT * abs(smooth[-1]))
        sums, rows, values = zip(*((mark.sum, mark.rows, mark.last) for mark in self.marks), strict=True)
        return direction(sums, rows, values, least)

    def times_usual(self, value: float) -> float | None:
        """How many times the median of the marks a value is, if that is unusual; else None.

        Of a metric about 0, every value is many times the usual one.
        """
        if any(mark.low < 0 for mark in self.marks) and any(mark.high > 0 for mark in self.marks):
            return None
        usual = abs(median(mark.last for mark in self.marks)) if self.marks else 0.0
        return abs(value) / usual if usual and abs(value) >= SPIKE * usual else None


class _Wanted(NamedTuple):
    """What a request asks for."""

    window: Window
    metrics: tuple[str, ...]
    width: int
    generation: int


class Curves:
    """The metrics that one view shows of one run, and what is to be asked of the box for them."""

    def __init__(self, run: str, window: Window | None = None, now: Callable[[], float] = monotonic) -> None:
        self.run = run
        self.window = window or Window()
        self.metrics: tuple[str, ...] = ()
        self.width = 0
        """Pixel columns of the widest chart."""
        self.curves: dict[str, Curve] = {}
        self.first: float | None = None
        """First and last x of the run."""
        self.last: float | None = None
        self.axis = ""
        """The x axis of the curves: another one than the window's until the box has answered."""
        self.smoothing = RAW
        """One of :data:`grpo_train.run_dir.curves.LEVELS`."""
        self.progress = 0.0
        """Share of the log that the curves are made from."""
        self.is_coarse = True
        """Whether the curves are made from a part of the rows, or there are none yet."""
        self.asking = Asking(now)
        self.recalled_at: float | None = None
        """When the box gave these curves, if the laptop kept them; None if they are of this session."""
        self.version = 0
        self._now = now
        self._ends: tuple[float, float] = (0.0, 1.0)
        self._rows = 0
        self._live = 0
        self._is_ahead = False
        """Whether rows were taken since the version changed."""
        self._drawn_at = -DRAW_S
        self._next: int | None = None
        """Index of the next row of the log to take; None before the first answer."""
        self._offset = 0
        """Rows that begin before it are in the answer, also those that arrive after it."""
        self._generation = 0

    @property
    def ends(self) -> tuple[float, float]:
        """First and last x shown."""
        low, high = self._ends
        if self.window.follows and self.last is not None and self.last > high:
            high = self.last
            if self.window.span is not None:
                low = high - self.window.span
        return (low, high) if high > low else (low - 1, high + 1)

    def mean_over(self, curve: Curve) -> int:
        """How many values the mean covers that is drawn of a curve; 0 = its values are the line."""
        return mean_over(self.smoothing, curve.count, self.width)

    @property
    def is_answered(self) -> bool:
        """Whether the box has answered, or refused, a request for the window."""
        return self._is_enough(self.asking.ended)

    @property
    def _wanted(self) -> _Wanted:
        return _Wanted(self.window, self.metrics, self.width, self._generation)

    def _is_enough(self, asked: object) -> bool:
        """Whether the answer to a request has what is wanted now: charts may have been hidden since."""
        if not isinstance(asked, _Wanted) or not {*self.metrics} <= {*asked.metrics}:
            return False
        return asked._replace(metrics=self.metrics) == self._wanted

    def show(self, metrics: tuple[str, ...], width: int) -> None:
        """Choose the metrics and the pixel columns."""
        if width != self.width or metrics != self.metrics:
            self.metrics, self.width = metrics, width
            self.version += 1

    def invalidate(self) -> None:
        """The log was replaced, or a resume superseded a part of it: ask anew."""
        self._generation += 1
        self._next = None
        self.version += 1

    def due(self) -> dict[str, Any] | None:
        """The parameters of the ``series`` request to send now, which is then in flight; None if there is none."""
        if self.asking.is_in_flight or not self.metrics or self.width < 1:
            return None
        most = max(MOST_LIVE, LIVE_SHARE * self._rows)
        behind = self.window.follows and (self._live > most or self._next is None)
        if self.is_answered and not self.asking.is_due(SOON_S if self.is_coarse or behind else None):
            return None
        self.asking.start(self._wanted)
        window = self.window
        low = window.low
        if window.span is not None and self.last is not None:
            low = self.last - window.span
        bounds = {name: value for name, value in (("low", low), ("high", window.high)) if value is not None}
        return {
            "run": self.run, "metrics": list(self.metrics), "x": window.x, "width": self.width, **bounds,
        }  # fmt: skip

    def answer(self, reply: Mapping[str, Any], logs: RunLogs) -> None:
        """Apply the reply to the request in flight."""
        if not self._is_enough(self.asking.key):  # the window changed meanwhile
            self.asking.cancel(self.asking.key)
            return
        self.asking.end(self.asking.key, is_whole=reply["state"] == "whole")
        self.recalled_at = None
        self._take_reply(reply)
        self._offset = reply["offset"]
        self._next = _first_from(logs, self._offset)
        self.extend(logs)

    @property
    def kept_under(self) -> dict[str, Any]:
        """The parameters under which the laptop keeps an answer: for any width, as the size of a terminal changes."""
        window = self.window
        return {
            "run": self.run, "metrics": list(self.metrics), "x": window.x, "low": window.low, "high": window.high,
            "span": window.span,
        }  # fmt: skip

    def recall(self, reply: Mapping[str, Any], at: float) -> None:
        """Show the curves that the laptop kept, until the box answers."""
        if not self.curves:
            self.recalled_at = at
            self._take_reply(reply)

    def _take_reply(self, reply: Mapping[str, Any]) -> None:
        self.is_coarse, self.progress = reply["state"] != "whole", reply["progress"]
        self.axis, self.first, self.last = reply["x"], reply["first"], reply["last"]
        self._ends = (reply["low"], reply["high"])
        self._rows, self._live = reply["rows"], 0
        self.curves = {
            row["metric"]: Curve(row, reply["low"], reply["high"]) for row in reply["series"] if UNREADABLE not in row
        }
        self.version += 1

    def fail(self, message: str) -> None:
        """The box did not answer the request in flight."""
        self.asking.end(self.asking.key, message)
        self.version += 1

    def extend(self, logs: RunLogs) -> None:
        """Add the rows that arrived since the last call."""
        if self._next is None or self.is_coarse or not self.window.follows:
            return
        rows = logs.rows
        if rows.first > self._next:  # more rows arrived than are kept
            self._next = None
            return
        while self._next < rows.end and self._live < LIVE_KEPT:
            row = rows.get(self._next)
            self._next += 1
            if row is None or row.offset < self._offset:
                continue
            if (x := self._x_of(row)) is not None:
                self._take(x, row)
                self._is_ahead = True
        if self._is_ahead and self._now() - self._drawn_at >= DRAW_S:
            self._is_ahead, self._drawn_at = False, self._now()
            self.version += 1

    def _x_of(self, row: TrainLogRow) -> float | None:
        if self.axis == "step":
            return row_step(row.fields)
        if self.axis == "seconds":
            took = to_float(row.fields.get("time/step")) or 0.0
            return (self.last or 0.0) + (took if 0 < took < HUGE else 0.0)
        return row_time(row.fields) if self.axis == "time" else to_float(row.fields.get("num_tokens"))

    def _take(self, x: float, row: TrainLogRow) -> None:
        self.last = x if self.last is None else max(self.last, x)
        self._live += 1
        for name, curve in self.curves.items():
            value = row_step(row.fields) if name == STEP else to_float(row.fields.get(name))
            if value is not None:
                curve.append(x, value)

    @property
    def spacing(self) -> float:
        """The usual distance of two rows on the axis."""
        if self.axis == "step" or self.first is None or self.last is None:
            return 1.0
        return (self.last - self.first) / max(1, self._rows + self._live - 1)

    def x_of_step(self, step: int) -> float | None:
        """Where a step is on the axis shown, within a pixel column; None if that is not known, or out of the range."""
        if self.axis == "step":
            return float(step)
        marks = self.curves[STEP].marks if STEP in self.curves else []
        place = bisect_left(marks, float(step), key=lambda mark: mark.high)
        return marks[place].x if place < len(marks) and (place or marks[0].low <= step) else None


def _first_from(logs: RunLogs, offset: int) -> int | None:
    """Index of the first row of the log that begins at ``offset`` or later; None if rows before it are not kept."""
    rows = logs.rows
    index = rows.end
    while index > rows.first and (row := rows.get(index - 1)) is not None and row.offset >= offset:
        index -= 1
    missing = index == rows.first and len(rows) and rows.get(index).offset > offset  # type: ignore[union-attr]
    return None if missing else index


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
