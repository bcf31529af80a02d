"""Curves reduced to what a picture can show: the values, or of many the lowest, highest and mean of each column.

The app's index reduces on the box likewise (``remote/index/series.py``); the engine works without the link. What the
line is: :mod:`grpo_train.run_dir.curves`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from grpo_train.report.train_log import Floats, Metric
from grpo_train.run_dir.curves import centered_means, mean_over

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
    line: Floats
    """The values themselves, or their mean around each column."""
    over: int
    """How many values that mean covers; 0 = each column is one value."""
    gaps: Floats
    """Steps with NaN or an infinity."""
    final: float
    """The last value as logged."""

    @property
    def x(self) -> Floats:
        return (self.first + self.last) / 2


def reduce(metric: Metric, first: float, last: float, width: int, smoothing: str) -> Curve:
    """A metric between two steps: a column a value where these are the line, else at most ``width`` columns."""
    finite = np.abs(metric.values) < LARGEST  # False for NaN
    usable = finite & (metric.steps >= first) & (metric.steps <= last)
    steps, values = metric.steps[usable], metric.values[usable]
    over = mean_over(smoothing, len(values), width)
    if over:
        column = np.minimum((steps - first) / max(last - first, 1) * width, width - 1).astype(int)
    else:
        column = np.arange(len(values))
    starts = np.flatnonzero(np.diff(column, prepend=-1))
    ends = np.append(starts[1:], len(steps))[: len(starts)] - 1
    counts = ends - starts + 1
    empty = np.empty(0)
    mean = np.add.reduceat(values / np.repeat(counts, counts), starts) if len(starts) else empty
    line = np.array(centered_means((mean * counts).tolist(), counts.tolist(), over)) if over else mean
    return Curve(
        name=metric.name,
        first=steps[starts],
        last=steps[ends],
        low=np.minimum.reduceat(values, starts) if len(starts) else empty,
        high=np.maximum.reduceat(values, starts) if len(starts) else empty,
        mean=mean,
        line=line,
        over=over,
        gaps=metric.steps[~finite],
        final=metric.last,
    )


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
    if not len(curve.line):
        return ""
    column = np.linspace(0, len(curve.line) - 1, min(width, len(curve.line))).round().astype(int)
    values = curve.line[column]
    low, high = float(values.min()), float(values.max())
    levels = (values - low) / (high - low) * 7.99 if high > low else np.full(len(values), 3)
    return "".join("▁▂▃▄▅▆▇█"[int(level)] for level in levels)
