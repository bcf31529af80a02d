"""Curves reduced to what a picture can show: lowest, highest and mean value of each column, and a moving average.

The app's index reduces on the box likewise (``remote/index/series.py``); the engine works without the link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grpo_train.report.train_log import Floats, Metric

LARGEST = 1e300
"""Values beyond count as not finite: their sums overflow."""
MAIN = (
    "reward", "accuracy", "completions/mean_length", "grad_norm", "loss", "kl", "entropy", "ess/token",
    "frac_reward_zero_std",
)  # fmt: skip
"""Metrics that come first."""


@dataclass(frozen=True)
class Curve:
    """A metric in columns, of which none is empty; all arrays have one entry a column."""

    name: str
    first: Floats
    """Steps: first and last of the column."""
    last: Floats
    low: Floats
    high: Floats
    mean: Floats
    smooth: Floats
    """The moving average at the column's last step."""
    gaps: Floats
    """Steps with NaN or an infinity."""
    final: float
    """The last value as logged."""

    @property
    def x(self) -> Floats:
        return (self.first + self.last) / 2

    @property
    def is_smoothed(self) -> bool:
        return not np.array_equal(self.smooth, self.mean)


def reduce(metric: Metric, first: float, last: float, width: int, window: int) -> Curve:
    """A metric between two steps in at most ``width`` columns.

    ``window``: steps of the moving average, which covers the whole metric; 0 or 1 = none.
    """
    usable = np.abs(metric.values) < LARGEST  # False for NaN
    steps, values = metric.steps[usable], metric.values[usable]
    smooth = moving_average(values, window)
    inside = (steps >= first) & (steps <= last)
    steps, values, smooth = steps[inside], values[inside], smooth[inside]
    column = np.minimum((steps - first) / max(last - first, 1) * width, width - 1).astype(int)
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    ends = np.append(starts[1:], len(steps))[: len(starts)] - 1
    counts = ends - starts + 1
    empty = np.empty(0)
    return Curve(
        name=metric.name,
        first=steps[starts],
        last=steps[ends],
        low=np.minimum.reduceat(values, starts) if len(starts) else empty,
        high=np.maximum.reduceat(values, starts) if len(starts) else empty,
        mean=np.add.reduceat(values / np.repeat(counts, counts), starts) if len(starts) else empty,
        smooth=smooth[ends],
        gaps=metric.steps[~usable],
        final=metric.last,
    )


def moving_average(values: Floats, window: int) -> Floats:
    """Exponential moving average, debiased, with the mean age of a plain one over ``window`` values."""
    if window <= 1 or not len(values):
        return values
    rate = 2 / (window + 1)
    averages = np.empty(len(values))
    average = 0.0
    for i, value in enumerate(values.tolist()):
        average += rate * (value - average)
        averages[i] = average
    weights: Floats = -np.expm1(np.arange(1, len(values) + 1) * np.log1p(-rate))
    return averages / weights


def grouped(metrics: Mapping[str, Metric]) -> tuple[list[Metric], dict[str, list[Metric]], list[Metric]]:
    """The main metrics, the others by the part of their name before the slash, and those that never change."""
    constant = [m for m in metrics.values() if m.is_constant and m.name not in ("reward", "accuracy")]
    same = {metric.name for metric in constant}
    main = [metrics[name] for name in MAIN if name in metrics and name not in same]
    groups: dict[str, list[Metric]] = {}
    for metric in sorted(metrics.values(), key=lambda m: m.name):
        if metric.name not in same and metric not in main:
            prefix, slash, _ = metric.name.partition("/")
            groups.setdefault(prefix if slash else "other", []).append(metric)
    return main, dict(sorted(groups.items(), key=lambda each: (each[0] == "other", each[0]))), constant


def trend(curve: Curve, width: int = 24) -> str:
    """A curve as one line of blocks, for text."""
    if not len(curve.smooth):
        return ""
    column = np.linspace(0, len(curve.smooth) - 1, min(width, len(curve.smooth))).round().astype(int)
    values = curve.smooth[column]
    low, high = float(values.min()), float(values.max())
    levels = (values - low) / (high - low) * 7.99 if high > low else np.full(len(values), 3)
    return "".join("▁▂▃▄▅▆▇█"[int(level)] for level in levels)
