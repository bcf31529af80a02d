"""The numbers below a chart: steps, tokens, times of day or since a start, costs. Pure functions."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from grpo_train.history.cost import dollars
from grpo_train.run_dir.display import duration
from grpo_tui.model.charts_view import ELAPSED
from grpo_tui.model.curves import Mark
from grpo_tui.model.formatting import compact_number, money, tick_labels
from grpo_tui.widgets.braille import View, ticks, view_of_marks

SHARES = re.compile(r"(task/[^/]+/)?(accuracy(/.*)?|ess/.*|groups/.*|frac_.*|completions/clipped_ratio)")
"""Metrics that are shares of a whole. Those of a few per cent (``clip_ratio``, ``mismatch``) keep their own axis."""
TIME_UNITS = ((86_400.0, 2 * 86_400), (3_600.0, 2 * 3_600), (60.0, 120), (1.0, 0))
"""Seconds of a unit on an axis of elapsed time, and the range from which it is used."""


def view_of(metric: str, marks: Sequence[Mark], ends: tuple[float, float], is_log: bool = False) -> View:
    """The view of all values of the marks; of a metric that is a share of a whole, from 0 to 1."""
    view = view_of_marks(marks, *ends)
    if is_log or not SHARES.fullmatch(metric) or any(mark.low < 0 or mark.high > 1 for mark in marks):
        return view
    return replace(view, y_low=0.0, y_high=1.0)


def x_labels(low: float, high: float, count: int, axis: str, price: float | None = None) -> list[tuple[float, str]]:
    """At most ``count`` round places on an x axis, each with its label. ``price``: dollars per hour."""
    if axis == "seconds":
        rate = dollars(price or 0.0, 1.0)
        levels = ticks(low * rate, high * rate, count) if rate else []
        return [(level / rate, f"${text}") for level, text in zip(levels, tick_labels(levels)[0], strict=True)]
    unit = next(unit for unit, least in TIME_UNITS if high - low >= least) if axis == ELAPSED else 1.0
    places = [level * unit for level in ticks(low / unit, high / unit, count)]
    return [(place, axis_label(place, axis)) for place in places]


def axis_label(value: float, axis: str, price: float | None = None) -> str:
    """A number below a chart; "" for one that would say nothing (half a step). ``price``: dollars per hour."""
    if axis == "seconds":
        return cost(value, price)
    if axis == "time":
        return time.strftime("%H:%M", time.localtime(value))
    if axis == ELAPSED:
        return elapsed(value)
    if axis == "tokens":
        return compact_number(value)
    if value != int(value):
        return ""
    return f"{int(value):,}" if abs(value) < 1e6 else compact_number(value)


def cost(seconds: float, price: float | None) -> str:
    """What seconds of the box cost, with two digits also below a cent."""
    return money(dollars(price or 0.0, seconds), is_small=True)


def elapsed(seconds: float) -> str:
    """A time since the start of a run, in one unit where that is exact: ``2 h``."""
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return duration(seconds) if seconds else "0"
