"""The list of a run's metrics as lines: the shown ones, the others by family, what is unusual lately. No Textual."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_train.history.query import check_pattern, compiled
from grpo_tui.box.charts import ChartsView

UNUSUAL = 3.0
"""Robust z-score of the last 20 steps from which a metric is unusual."""


def matches(name: str, pattern: str) -> bool:
    """Whether a metric passes the filter: a part of its name, a glob with ``*``, or ``~REGEX``. Raises QueryError."""
    if pattern.startswith("~"):
        check_pattern(pattern[1:], len("~"))
        return compiled(pattern[1:]).search(name) is not None
    if "*" in pattern:
        return fnmatch.fnmatchcase(name.lower(), pattern.lower())
    return pattern.lower() in name.lower()


@dataclass(frozen=True)
class MetricLine:
    """A line of the list of metrics."""

    kind: str
    """``metric``, ``family`` (a heading) or ``note``."""
    text: str
    name: str = ""
    indent: int = 0
    is_shown: bool = False
    unusual: float | None = None


def metric_lines(rows: Iterable[Mapping[str, Any]], view: ChartsView) -> list[MetricLine]:
    """The list of metrics: the shown ones, the others by family, what is unusual lately; constant ones are counted."""
    known = {str(row["name"]): row for row in rows}
    passing = [name for name in known if matches(name, view.filter)] if view.filter else list(known)

    def line(name: str, text: str, indent: int = 0, is_shown: bool = False) -> MetricLine:
        return MetricLine("metric", text, name, indent, is_shown, _unusual(known[name]))

    shown = [name for name in view.metrics(known) if name in passing]
    lines = [line(name, name, is_shown=True) for name in shown]
    constant = 0
    families: dict[str, list[str]] = {}
    for name in passing:
        if name in shown:
            continue
        if known[name].get("constant") and not view.filter:
            constant += 1
            continue
        family, _, rest = name.partition("/")
        families.setdefault(family if rest else "", []).append(name)
    for family in sorted(families):
        if family:
            lines.append(MetricLine("family", f"{family}/"))
        for name in families[family]:
            lines.append(line(name, name.partition("/")[2] if family else name, 1 if family else 0))
    unusual = sorted(((_unusual(known[name]) or 0.0, name) for name in passing), reverse=True)[:5]
    if unusual and unusual[0][0]:
        lines.append(MetricLine("note", f"▲ unusual lately ({UNUSUAL:g} σ)"))
        lines += [line(name, name, 1) for score, name in unusual if score]
    if constant:
        lines.append(MetricLine("note", f"· constant: {constant} hidden"))
    return lines


def _unusual(row: Mapping[str, Any]) -> float | None:
    score = row.get("unusual")
    return abs(score) if isinstance(score, (int, float)) and abs(score) >= UNUSUAL else None
