"""State of the followed run, built from the bytes of its logs: metrics, rows, completions, console. No Textual."""

from __future__ import annotations

import statistics
import sys
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.files import parse_time, to_float
from grpo_tui.model.formatting import one_line
from grpo_tui.model.health import Health, records_of
from grpo_tui.model.lines import LineBuffer, LineSplitter
from grpo_tui.model.series import Series, Span
from remote.intake import log_row, log_text

ROWS_KEPT = 5_000
CONSOLE_KEPT = 5_000
COMPLETIONS_KEPT = 256
TEXT_KEPT = 20_000
"""Maximum characters of a prompt or completion, so that memory stays bounded."""
SERIES_KEPT = 2_000
"""Maximum number of metrics."""
POINTS_KEPT = 1_000_000
"""Maximum number of points of all metrics; then every second point goes."""
POINTS_OF_EACH = 256
"""A metric with fewer points keeps them all."""
ROWS_WEIGHT = 64 << 20
"""Maximum bytes of the rows."""
FIELD_LENGTH = 64
"""Maximum characters of a text in a row of train_log.jsonl."""
RANGES_KEPT = 1_000
"""Maximum number of byte ranges of a log that resumes replaced; further ones are ignored."""
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
    rows: LineBuffer[Row] = field(default_factory=lambda: LineBuffer(ROWS_KEPT, ROWS_WEIGHT))
    completions: LineBuffer[Completion] = field(default_factory=lambda: LineBuffer(COMPLETIONS_KEPT))
    console: LineBuffer[str] = field(default_factory=lambda: LineBuffer(CONSOLE_KEPT))
    superseded: dict[str, list[Span]] = field(default_factory=dict)
    splitters: dict[str, LineSplitter] = field(default_factory=dict)
    version: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    last_time: float | None = None
    """Time of the newest row, in seconds since the epoch on the box's clock."""
    health: Health = field(default_factory=Health)
    _points: int = 0

    def __post_init__(self) -> None:
        for log in LOGS:
            self.reset(log)

    def reset(self, log: str) -> None:
        """Forget one log: its file was replaced."""
        self.splitters[log] = LineSplitter()
        self.version[log] += 1
        if log == "train_log":
            self.series, self.rows = {}, LineBuffer(ROWS_KEPT, ROWS_WEIGHT)
            self.last_time, self.health, self._points = None, Health(), 0
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
                text = log_text(line)
                self.console.append(text, sys.getsizeof(text))
            return
        superseded = self.superseded.get(FILES[log], [])
        replaced: dict[str, list[Span]] = {}
        for offset_of_line, line in lines:
            row = None if _within(offset_of_line, superseded) else log_row(line)
            if row is None:
                continue
            if log == "train_log":
                self._add_metrics(offset_of_line, row)
            elif log == "rollouts":
                one = completion_of(offset_of_line, row)
                self.completions.append(one, sys.getsizeof(one.prompt) + sys.getsizeof(one.text))
            else:
                _collect(row, replaced)
        if replaced:
            self._supersede(replaced)

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
        records = records_of(row.get("health")) if isinstance(row.get("health"), list) else None
        fields = _shown_fields(row)
        weight = sum(100 + sys.getsizeof(key) + sys.getsizeof(value) for key, value in fields.items())
        if records is not None:
            fields["health"] = records
            weight += sum(sys.getsizeof(text) for record in records for text in record.values())
        self.rows.append(Row(offset, fields), weight)
        self.last_time = row_time(row) or self.last_time
        self.health.take(step, records)
        for key, value in fields.items():
            if key != "step" and (found := to_float(value)) is not None:
                series = self.series.get(key)
                if series is None:
                    if len(self.series) >= SERIES_KEPT:
                        continue
                    series = self.series[key] = Series()
                series.append(step, found, offset)
                self._points += 1
        if self._points > POINTS_KEPT:
            for series in self.series.values():
                if len(series) + len(series.gaps) > POINTS_OF_EACH:
                    series.thin()
            self._count_points()

    def _count_points(self) -> None:
        self._points = sum(len(series) + len(series.gaps) for series in self.series.values())

    def _supersede(self, replaced: dict[str, list[Span]]) -> None:
        """Remove what resumes replaced: byte ranges of each log."""
        for file, spans in replaced.items():
            known = self.superseded.setdefault(file, [])
            known[:] = _merged(known + spans)[:RANGES_KEPT]
        if FILES["train_log"] in replaced:
            self._remove_metrics(_merged(replaced[FILES["train_log"]]))
        if FILES["rollouts"] in replaced:
            ranges = _merged(replaced[FILES["rollouts"]])
            self.completions.remove(lambda one: _within(one.offset, ranges))
            self.version["rollouts"] += 1

    def _remove_metrics(self, spans: list[Span]) -> None:
        for series in self.series.values():
            series.remove(spans)
        self.series = {key: series for key, series in self.series.items() if len(series) or len(series.gaps)}
        self._count_points()
        self.rows.remove(lambda row: _within(row.offset, spans))
        self.last_time = row_time(self.rows.last.fields) if self.rows.last else None
        self.health = Health()
        for row in self.rows:
            self.health.take(step_of(row.fields) or 0, row.fields.get("health"))
        self.version["train_log"] += 1


def _shown_fields(row: dict[str, Any]) -> dict[str, Any]:
    """The numbers and texts of a row. The names are shared by all rows, and there may be 5,000 rows of 60 fields."""
    return {
        sys.intern(key): value[:FIELD_LENGTH] if isinstance(value, str) else value
        for key, value in row.items()
        if not isinstance(value, (list, dict))
    }


def _collect(event: dict[str, Any], replaced: dict[str, list[Span]]) -> None:
    """Add the byte ranges that an event of a resume names for each file."""
    ranges = event.get("superseded")
    for file, span in ranges.items() if isinstance(ranges, dict) else ():
        try:
            low, high = int(span[0]), int(span[1])
        except (TypeError, ValueError, IndexError, KeyError, OverflowError):
            continue
        if file in FILES.values() and 0 <= low < high < 2**63:
            replaced.setdefault(file, []).append((low, high))


def _merged(spans: list[Span]) -> list[Span]:
    """The same ranges in order, none of them within or beside another."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def _within(offset: int, ranges: list[Span]) -> bool:
    """Whether an offset is in one of the ranges of :func:`_merged`."""
    index = bisect_right(ranges, offset, key=lambda span: span[0]) - 1
    return index >= 0 and offset < ranges[index][1]


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
