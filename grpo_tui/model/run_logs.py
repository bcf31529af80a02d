"""What the face knows of the one run it follows: metrics, rows, completions and console, from the bytes of its logs."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.files import number, parse_time
from grpo_tui.model.formatting import one_line, printable
from grpo_tui.model.health import Health
from grpo_tui.model.lines import LineBuffer, LineSplitter
from grpo_tui.model.series import Series

ROWS_KEPT = 5_000
CONSOLE_KEPT = 5_000
COMPLETIONS_KEPT = 256
EVENTS_KEPT = 1_000
TEXT_KEPT = 20_000
"""Characters of a prompt or completion that are kept: memory stays bounded whatever the model babbles."""
CONSOLE_WIDTH = 4_000
TAIL_BYTES = 262_144

LOGS = ("train_log", "events", "rollouts", "console")
"""The logs that are followed, in the order in which they are asked for."""
FILES = {
    "train_log": "train_log.jsonl",
    "events": "events.jsonl",
    "rollouts": "rollouts.jsonl",
    "console": "console.log",
}
TAILED = frozenset({"rollouts", "console"})
"""Logs of which only the end is fetched: they may be gigabytes."""


def log_path(run: str, log: str) -> str:
    """A run's log relative to the root."""
    return f"training_runs/{run}/logs/{FILES[log]}"


@dataclass(frozen=True)
class Completion:
    """One line of rollouts.jsonl."""

    offset: int
    step: int
    prompt: str
    text: str
    reward: float | None
    answer: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class Row:
    """One line of a JSON log, to be written out only when it is on the screen."""

    offset: int
    fields: dict[str, Any]


@dataclass
class RunLogs:
    """The logs of one run. ``version[LOG]`` moves when what that log says has changed."""

    run: str
    series: dict[str, Series] = field(default_factory=dict)
    rows: LineBuffer[Row] = field(default_factory=lambda: LineBuffer(ROWS_KEPT))
    events: LineBuffer[Row] = field(default_factory=lambda: LineBuffer(EVENTS_KEPT))
    completions: LineBuffer[Completion] = field(default_factory=lambda: LineBuffer(COMPLETIONS_KEPT))
    console: LineBuffer[str] = field(default_factory=lambda: LineBuffer(CONSOLE_KEPT))
    superseded: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    splitters: dict[str, LineSplitter] = field(default_factory=dict)
    version: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    last_time: float | None = None
    """When the newest row was logged, by the box's clock."""
    health: Health = field(default_factory=Health)
    problems: dict[str, str] = field(default_factory=dict)
    """Why a log cannot be followed, in the box's words."""
    unreadable: int = 0
    """Whole lines that were no JSON object: a crash's remains."""

    def __post_init__(self) -> None:
        for log in LOGS:
            self.reset(log)

    def reset(self, log: str) -> None:
        """Forget one log: its file is another one now."""
        self.splitters[log] = LineSplitter()
        self.version[log] += 1
        if log == "train_log":
            self.series, self.rows, self.last_time, self.health = {}, LineBuffer(ROWS_KEPT), None, Health()
        elif log == "events":
            self.events, self.superseded = LineBuffer(EVENTS_KEPT), {}
        elif log == "rollouts":
            self.completions = LineBuffer(COMPLETIONS_KEPT)
        else:
            self.console = LineBuffer(CONSOLE_KEPT)

    def feed(self, log: str, offset: int, data: bytes) -> None:
        """Take bytes of a log in order, however they were cut."""
        lines = self.splitters[log].feed(offset, data)
        if not lines:
            return
        self.version[log] += 1
        if log == "console":
            for _, line in lines:
                self.console.append(console_text(line))
            return
        void = self.superseded.get(FILES[log], [])
        for start, line in lines:
            if any(low <= start < high for low, high in void):
                continue
            row = parse_row(line)
            if row is None:
                self.unreadable += bool(line.strip())
            elif log == "train_log":
                self._add_metrics(start, row)
            elif log == "rollouts":
                self.completions.append(completion_of(start, row))
            else:
                self.events.append(Row(start, row))
                self._supersede(row)

    def value(self, metric: str) -> float | None:
        """The newest value of a metric, or None where it was never logged."""
        series = self.series.get(metric)
        return series.last if series is not None else None

    @property
    def last_step(self) -> int | None:
        """The step of the newest row."""
        row = self.rows.last
        step = number(row.fields.get("step")) if row else None
        return None if step is None else int(step)

    @property
    def sandbox(self) -> str:
        """How well the programs of the newest step were locked in ("strong"); "" where none ran."""
        level = self.rows.last.fields.get("sandbox/isolation") if self.rows.last else None
        return one_line(level[:16]) if isinstance(level, str) else ""

    def step_seconds(self) -> float | None:
        """The mean of the last 15 steps: with several updates a buffer every other one has no rollout in it."""
        series = self.series.get("time/step")
        recent = series.recent(15) if series else []
        return statistics.fmean(recent) if recent else None

    def _add_metrics(self, offset: int, row: dict[str, Any]) -> None:
        step = number(row.get("step"))
        if step is None or not math.isfinite(step):
            self.unreadable += 1
            return
        self.rows.append(Row(offset, row))
        self.last_time = row_time(row) or self.last_time
        self.health.take(int(step), row.get("health"))
        for key, value in row.items():
            if key != "step" and (found := number(value)) is not None:
                series = self.series.get(key)
                if series is None:
                    series = self.series[key] = Series()
                series.append(step, found, offset)

    def _supersede(self, event: dict[str, Any]) -> None:
        ranges = event.get("superseded")
        if not isinstance(ranges, dict):
            return
        for file, span in ranges.items():
            try:
                low, high = int(span[0]), int(span[1])
            except (TypeError, ValueError, IndexError, KeyError):
                continue
            self.superseded.setdefault(str(file), []).append((low, high))
            if file == FILES["train_log"]:
                self.series = {key: series.without([(low, high)]) for key, series in self.series.items()}
                self.series = {key: series for key, series in self.series.items() if len(series) or len(series.gaps)}
                self.rows.keep(lambda row, low=low, high=high: not low <= row.offset < high)  # type: ignore[misc]
                self.last_time = row_time(self.rows.last.fields) if self.rows.last else None
                self.health = Health()
                for row in self.rows:
                    self.health.take(int(number(row.fields.get("step")) or 0), row.fields.get("health"))
                self.version["train_log"] += 1
            elif file == FILES["rollouts"]:
                self.completions.keep(lambda one, low=low, high=high: not low <= one.offset < high)  # type: ignore[misc]
                self.version["rollouts"] += 1


def parse_row(line: bytes) -> dict[str, Any] | None:
    """The object a JSON line holds, or None."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def row_time(row: dict[str, Any]) -> float | None:
    """When a row was logged, in seconds since the epoch."""
    try:
        return parse_time(str(row["time"]))
    except (KeyError, ValueError):
        return None


def completion_of(offset: int, row: dict[str, Any]) -> Completion:
    """A rollouts row as the completion panel wants it; the prompt's end is kept, it holds the question."""
    answer = row.get("gold")
    return Completion(
        offset=offset,
        step=int(number(row.get("step")) or 0),
        prompt=str(row.get("prompt", ""))[-TEXT_KEPT:],
        text=str(row.get("completion", ""))[:TEXT_KEPT],
        reward=number(row.get("reward")),
        answer="" if answer is None else str(answer)[:200],
        time=row_time(row) or 0.0,
    )


def console_text(line: bytes) -> str:
    """A console line as a terminal would leave it: what follows the last carriage return, without escapes."""
    text = line.decode("utf-8", "replace").rstrip("\r")
    if "\r" in text:
        text = text.rpartition("\r")[2]
    return printable(text.expandtabs(4))[:CONSOLE_WIDTH]
