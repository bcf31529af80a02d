"""The numbers below a chart: steps, tokens, times of day, costs. Pure functions."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import replace

from grpo_train.history.cost import dollars
from grpo_tui.model.curves import Mark
from grpo_tui.model.formatting import compact_number, money, tick_labels
from grpo_tui.widgets.braille import View, ticks, view_of_marks

SHARES = re.compile(r"(task/[^/]+/)?(accuracy(/.*)?|ess/.*|groups/.*|frac_.*|completions/clipped_ratio)")
"""Metrics that are shares of a whole. Those of a few per cent (``clip_ratio``, ``mismatch``) keep their own axis."""


def view_of(metric: str, marks: Sequence[Mark], ends: tuple[float, float], is_log: bool = False) -> View:
    """The view of all values of the marks; of a metric that is a share of a whole, from 0 to 1."""
    view = view_of_marks(marks, *ends)
    if is_log or not SHARES.fullmatch(metric) or any(mark.low < 0 or mark.high > 1 for mark in marks):
        return view
    return replace(view, y_low=0.0, y_high=1.0)


def cost_labels(view: View, count: int, price: float | None) -> list[tuple[float, str]]:
    """Places of round costs on an axis of seconds, each with its label. ``price``: dollars per hour."""
    rate = dollars(price or 0.0, 1.0)
    levels = ticks(view.x_low * rate, view.x_high * rate, count) if rate else []
    return [(level / rate, f"${text}") for level, text in zip(levels, tick_labels(levels)[0], strict=True)]


def axis_label(value: float, axis: str, price: float | None = None) -> str:
    """A number below a chart; "" for one that would say nothing (half a step). ``price``: dollars per hour."""
    if axis == "seconds":
        return cost(value, price)
    if axis == "time":
        return time.strftime("%H:%M", time.localtime(value))
    if axis == "tokens":
        return compact_number(value)
    if value != int(value):
        return ""
    return f"{int(value):,}" if abs(value) < 1e6 else compact_number(value)


def cost(seconds: float, price: float | None) -> str:
    """What seconds of the box cost, with two digits also below a cent."""
    return money(dollars(price or 0.0, seconds), is_small=True)
