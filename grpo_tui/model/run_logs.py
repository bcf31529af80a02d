"""State of the followed run, built from the bytes of its logs: metrics, rows, completions, console. No Textual."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.files import parse_time, to_float
from grpo_tui.model.formatting import one_line
from grpo_tui.model.health import Health
from grpo_tui.model.lines import LineBuffer, LineSplitter
from grpo_tui.model.series import Series
from remote.intake import log_row, log_text

ROWS_KEPT = 5_000
CONSOLE_KEPT = 5_000
COMPLETIONS_KEPT = 256
TEXT_KEPT = 20_000
"""Maximum characters of a prompt or completion, so that memory stays bounded."""
SERIES_KEPT = 2_000
"""Maximum number of metrics."""
LAST_STEP = 10**12
"""Rows with a larger step are skipped."""
TAIL_BYTES = 262_144
"""Bytes fetched of a log in TAILED."""

LOGS = ("train_log", "events", "rollouts", "console")
"""The followed logs, in the order in which they are requested."""
FILES = {
    "train_log": "train_log.jsonl",
    "events": "events.jsonl",
    "rollouts": "rollouts.jsonl",
    "console": "console.log",
}
TAILED = frozenset({"rollouts", "console"})
"""Logs that may have gigabytes: only their end is fetched."""


def log_path(run: str, log: str) -> str:
    """Path of a run's log, relative to the root."""
    return f"training_runs/{run}/logs/{FILES[log]}"


@dataclass(frozen=True)
class Completion:
    """A row of rollouts.jsonl."""

    offset: int
    step: int
    prompt: str
    text: str
    reward: float | None
    answer: str = ""
    time: float = 0.0


@dataclass(frozen=True)
class Row:
    """A row of train_log.jsonl; formatted only when it is on the screen."""

    offset: int
    fields: dict[str, Any]


@dataclass
class RunLogs:
    """The logs of one run. ``version[LOG]`` increases with every change of that log's content."""

    run: str
    series: dict[str, Series] = field(default_factory=dict)
    rows: LineBuffer[Row] = field(default_factory=lambda: LineBuffer(ROWS_KEPT))
    completions: LineBuffer[Completion] = field(default_factory=lambda: LineBuffer(COMPLETIONS_KEPT))
    console: LineBuffer[str] = field(default_factory=lambda: LineBuffer(CONSOLE_KEPT))
    superseded: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    splitters: dict[str, LineSplitter] = field(default_factory=dict)
    version: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    last_time: float | None = None
    """Time of the newest row, in seconds since the epoch on the box's clock."""
    health: Health = field(default_factory=Health)

    def __post_init__(self) -> None:
        for log in LOGS:
            self.reset(log)

    def reset(self, log: str) -> None:
        """Forget one log: its file was replaced."""
        self.splitters[log] = LineSplitter()
        self.version[log] += 1
        if log == "train_log":
            self.series, self.rows, self.last_time, self.health = {}, LineBuffer(ROWS_KEPT), None, Health()
        elif log == "events":
            self.superseded = {}
        elif log == "rollouts":
            self.completions = LineBuffer(COMPLETIONS_KEPT)
        else:
            self.console = LineBuffer(CONSOLE_KEPT)

    def feed(self, log: str, offset: int, data: bytes) -> None:
        """Take the next bytes of a log, in any chunks."""
        lines = self.splitters[log].feed(offset, data)
        if not lines:
            return
        self.version[log] += 1
        if log == "console":
            for _, line in lines:
                self.console.append(log_text(line))
            return
        superseded = self.superseded.get(FILES[log], [])
        for offset_of_line, line in lines:
            row = None if _within(offset_of_line, superseded) else log_row(line)
            if row is None:
                continue
            if log == "train_log":
                self._add_metrics(offset_of_line, row)
            elif log == "rollouts":
                self.completions.append(completion_of(offset_of_line, row))
            else:
                self._supersede(row)

    @property
    def last_step(self) -> int | None:
        """The step of the newest row."""
        row = self.rows.last
        return step_of(row.fields) if row else None

    @property
    def sandbox(self) -> str:
        """Sandbox isolation level of the newest step (``strong``), or "" if the step ran no programs."""
        level = self.rows.last.fields.get("sandbox/isolation") if self.rows.last else None
        return one_line(level[:16]) if isinstance(level, str) else ""

    def step_seconds(self) -> float | None:
        """Mean seconds of the last 15 steps: with several updates per buffer, not every step has a rollout."""
        series = self.series.get("time/step")
        recent = series.recent(15) if series else []
        return statistics.fmean(recent) if recent else None

    def _add_metrics(self, offset: int, row: dict[str, Any]) -> None:
        step = step_of(row)
        if step is None:
            return
        self.rows.append(Row(offset, row))
        self.last_time = row_time(row) or self.last_time
        self.health.take(step, row.get("health"))
        for key, value in row.items():
            if key != "step" and (found := to_float(value)) is not None:
                series = self.series.get(key)
                if series is None:
                    if len(self.series) >= SERIES_KEPT:
                        continue
                    series = self.series[key] = Series()
                series.append(step, found, offset)

    def _supersede(self, event: dict[str, Any]) -> None:
        """Remove what a resume replaced: the byte ranges that its event names for each file."""
        ranges = event.get("superseded")
        for file, span in ranges.items() if isinstance(ranges, dict) else ():
            try:
                replaced = (int(span[0]), int(span[1]))
            except (TypeError, ValueError, IndexError, KeyError):
                continue
            self.superseded.setdefault(str(file), []).append(replaced)
            if file == FILES["train_log"]:
                self._remove_metrics(replaced)
            elif file == FILES["rollouts"]:
                self.completions.remove(lambda one, span=replaced: _within(one.offset, [span]))  # type: ignore[misc]
                self.version["rollouts"] += 1

    def _remove_metrics(self, span: tuple[int, int]) -> None:
        kept = {key: series.without(span) for key, series in self.series.items()}
        self.series = {key: series for key, series in kept.items() if len(series) or len(series.gaps)}
        self.rows.remove(lambda row: _within(row.offset, [span]))
        self.last_time = row_time(self.rows.last.fields) if self.rows.last else None
        self.health = Health()
        for row in self.rows:
            self.health.take(step_of(row.fields) or 0, row.fields.get("health"))
        self.version["train_log"] += 1


def _within(offset: int, ranges: list[tuple[int, int]]) -> bool:
    return any(low <= offset < high for low, high in ranges)


def step_of(row: dict[str, Any]) -> int | None:
    """Step of a row, or None without a usable one."""
    step = to_float(row.get("step"))
    return int(step) if step is not None and abs(step) <= LAST_STEP else None


def row_time(row: dict[str, Any]) -> float | None:
    """Time of a row in seconds since the epoch, or None."""
    try:
        return parse_time(str(row["time"]))
    except (KeyError, ValueError, OverflowError):
        return None


def completion_of(offset: int, row: dict[str, Any]) -> Completion:
    """A completion from its row. A long prompt keeps its end, which has the question."""
    answer = row.get("gold")
    return Completion(
        offset=offset,
        step=step_of(row) or 0,
        prompt=str(row.get("prompt", ""))[-TEXT_KEPT:],
        text=str(row.get("completion", ""))[:TEXT_KEPT],
        reward=to_float(row.get("reward")),
        answer="" if answer is None else str(answer)[:200],
        time=row_time(row) or 0.0,
    )
