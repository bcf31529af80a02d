"""``train_log.jsonl`` as one pair of arrays per metric, read once. Torch-free.

A log of 100,000 steps has some 200 MB: rows become arrays in batches of equal keys, without a Python object per value.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import open_log, parse_line, to_float
from grpo_train.run_dir.formats import RENAMED_KEYS, current_health
from grpo_train.run_dir.safe_json import read_lines

Floats = npt.NDArray[np.float64]
NOT_METRICS = ("step", "time", "health")
BATCH = 512
MAX_METRICS = 500
"""Further metrics are left out: a damaged log may have a new name in each row."""
MAX_CONDITIONS = 50
MAX_STEP = 1e12
_DIGITS = re.compile(r"[\d.,]+")


@dataclass(frozen=True)
class Metric:
    """One metric of a run, by rising step. NaN and infinities are kept."""

    name: str
    steps: Floats
    values: Floats

    @property
    def last(self) -> float:
        return float(self.values[-1])

    @property
    def finite(self) -> Floats:
        return self.values[np.isfinite(self.values)]

    @property
    def is_constant(self) -> bool:
        return bool(np.all(self.values == self.values[0]))


@dataclass
class Condition:
    """A health condition over a run."""

    level: str
    code: str
    message: str
    """The latest one."""
    first: int
    last: int
    steps: int = 0
    """Number of steps that have it."""


@dataclass
class TrainLog:
    """What a training log says."""

    metrics: dict[str, Metric] = field(default_factory=dict)
    rows: int = 0
    damaged: int = 0
    """Lines that are not a row; they are left out."""
    superseded: int = 0
    """Lines of steps that a resume replaced; they are left out."""
    first_step: int = 0
    last_step: int = 0
    conditions: list[Condition] = field(default_factory=list)
    """Worst level first, then by number of steps."""

    def step_of_highest(self, name: str) -> int | None:
        """The step with the highest finite value of a metric."""
        metric = self.metrics.get(name)
        if metric is None or not len(metric.finite):
            return None
        return int(metric.steps[np.argmax(np.where(np.isfinite(metric.values), metric.values, -np.inf))])


class _Layout:
    """Rows with the same keys in the same order, a batch at a time."""

    def __init__(self) -> None:
        self.steps: list[float] = []
        self.rows: list[tuple[Any, ...]] = []


class _Columns:
    """Steps and values of each metric, in the order of the log except that layouts are written in batches."""

    def __init__(self) -> None:
        self.steps: dict[str, array[float]] = {}
        self.values: dict[str, array[float]] = {}
        self._layouts: dict[tuple[str, ...], _Layout] = {}

    def add(self, step: float, row: dict[str, Any]) -> None:
        keys = tuple(row)
        if (layout := self._layouts.get(keys)) is None:
            if len(self._layouts) >= 64:
                self.flush()
                self._layouts.clear()
            layout = self._layouts[keys] = _Layout()
        layout.steps.append(step)
        layout.rows.append(tuple(row.values()))
        if len(layout.rows) == BATCH:
            self._write(keys, layout)

    def flush(self) -> None:
        for keys, layout in self._layouts.items():
            self._write(keys, layout)

    def _write(self, keys: Sequence[str], layout: _Layout) -> None:
        if not layout.rows:
            return
        for key, column in zip(keys, zip(*layout.rows, strict=True), strict=True):
            name = RENAMED_KEYS.get(key, key)
            if name in NOT_METRICS or not 0 < len(name) <= 255:
                continue
            if set(map(type, column)) <= {float, int}:
                self._extend(name, layout.steps, column)
            else:
                found = [(step, number) for step, value in zip(layout.steps, column, strict=True)
                         if (number := to_float(value)) is not None]  # fmt: skip
                if found:
                    self._extend(name, *zip(*found, strict=True))
        layout.steps.clear()
        layout.rows.clear()

    def _extend(self, name: str, steps: Sequence[float], values: Sequence[float]) -> None:
        if name not in self.values:
            if len(self.values) >= MAX_METRICS:
                return
            self.steps[name], self.values[name] = array("d"), array("d")
        self.steps[name].extend(steps)
        self.values[name].extend(values)

    def metrics(self) -> dict[str, Metric]:
        self.flush()
        found = {}
        for name, values in self.values.items():
            steps, numbers = np.frombuffer(self.steps[name]), np.frombuffer(values)
            if np.any(np.diff(steps) < 0):
                order = np.argsort(steps, kind="stable")
                steps, numbers = steps[order], numbers[order]
            found[name] = Metric(name, steps, numbers)
        return found


def read_train_log(run: RunDir) -> TrainLog:
    """The training log of a run, without superseded and damaged rows; empty if there is none. Raises OSError,
    Unreadable for something that is not a file."""
    log, columns = TrainLog(), _Columns()
    conditions: dict[tuple[str, str], Condition] = {}
    ranges = run.superseded().get("train_log.jsonl", [])
    file = open_log(run.logs / "train_log.jsonl", strict=True)
    if file is None:
        return log
    steps: set[int] = set()
    with file:
        for offset, line in read_lines(file):
            if any(low <= offset < high for low, high in ranges):
                log.superseded += 1
                continue
            row = parse_line(run.logs / "train_log.jsonl", offset, line, finite=False) or {}
            step = to_float(row.get("step"))
            if step is None or not 0 <= step <= MAX_STEP:
                log.damaged += 1
                continue
            log.rows += 1
            steps.add(int(step))
            columns.add(step, row)
            if health := row.get("health"):
                _count(conditions, int(step), health)
    if steps:
        log.first_step, log.last_step = min(steps), max(steps)
    log.metrics = columns.metrics()
    levels = ("alarm", "warning", "info")
    log.conditions = sorted(
        conditions.values(), key=lambda c: (levels.index(c.level) if c.level in levels else len(levels), -c.steps)
    )
    return log


def _count(conditions: dict[tuple[str, str], Condition], step: int, health: Any) -> None:
    for record in current_health(health):
        level, code, message = (str(record.get(key, "")) for key in ("level", "code", "message"))
        key = (level[:20], (code or _DIGITS.sub("", message))[:60])
        if (condition := conditions.get(key)) is None:
            if len(conditions) >= MAX_CONDITIONS:
                continue
            condition = conditions[key] = Condition(key[0], code[:60], "", step, step)
        condition.steps += 1
        condition.last, condition.message = step, message[:1000]
