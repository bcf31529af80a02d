"""The newest lines of the followed run's logs: rows, health, completions, console. No Textual."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import Any

from grpo_train.run_dir.files import parse_time, to_float
from grpo_tui.model.formatting import one_line
from grpo_tui.model.health import Health
from grpo_tui.model.lines import LineBuffer, LineSplitter
from remote.intake import log_row, log_text

ROWS_KEPT = 5_000
CONSOLE_KEPT = 5_000
COMPLETIONS_KEPT = 256
TEXT_KEPT = 20_000
"""Maximum characters of a prompt or completion, so that memory stays bounded."""
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
TAILED = frozenset({"train_log", "rollouts", "console"})
"""Logs that may have gigabytes: only their end is fetched. The curves of the whole training log come from the box."""
RECENT = 15
"""Rows whose mean is a recent value."""


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
    rows: LineBuffer[Row] = field(default_factory=lambda: LineBuffer(ROWS_KEPT))
    completions: LineBuffer[Completion] = field(default_factory=lambda: LineBuffer(COMPLETIONS_KEPT))
    console: LineBuffer[str] = field(default_factory=lambda: LineBuffer(CONSOLE_KEPT))
    superseded: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    splitters: dict[str, LineSplitter] = field(default_factory=dict)
    version: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LOGS, 0))
    last_time: float | None = None
    """Time of the newest row, in seconds since the epoch on the box's clock."""
    health: Health = field(default_factory=Health)
    health_from: int | None = None
    """The step from which ``health`` is known, where that is not the log's first."""

    def __post_init__(self) -> None:
        for log in LOGS:
            self.reset(log)

    def reset(self, log: str) -> None:
        """Forget one log: its file was replaced."""
        self.splitters[log] = LineSplitter()
        self.version[log] += 1
        if log == "train_log":
            self.rows, self.last_time, self.health, self.health_from = LineBuffer(ROWS_KEPT), None, Health(), None
        elif log == "events":
            self.superseded = {}
        elif log == "rollouts":
            self.completions = LineBuffer(COMPLETIONS_KEPT)
        else:
            self.console = LineBuffer(CONSOLE_KEPT)

    def feed(self, log: str, offset: int, data: bytes) -> bool:
        """Take the next bytes of a log, in any chunks; returns whether they superseded a part of the training log."""
        lines = self.splitters[log].feed(offset, data)
        if not lines:
            return False
        self.version[log] += 1
        if log == "console":
            for _, line in lines:
                self.console.append(log_text(line))
            return False
        rewound = len(self.superseded.get(FILES["train_log"], []))
        superseded = self.superseded.get(FILES[log], [])
        for offset_of_line, line in lines:
            row = None if _within(offset_of_line, superseded) else log_row(line)
            if row is None:
                continue
            if log == "train_log":
                self._add_row(offset_of_line, row)
            elif log == "rollouts":
                self.completions.append(completion_of(offset_of_line, row))
            else:
                self._supersede(row)
        return len(self.superseded.get(FILES["train_log"], [])) > rewound

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

    def recent(self, metric: str) -> float | None:
        """Mean of a metric's finite values in the newest rows that have one; None without any."""
        found: list[float] = []
        for index in range(self.rows.end - 1, max(self.rows.first, self.rows.end - 4 * RECENT) - 1, -1):
            row = self.rows.get(index)
            value = to_float(row.fields.get(metric)) if row else None
            if value is not None and math.isfinite(value):
                found.append(value)
                if len(found) == RECENT:
                    break
        return statistics.fmean(found) if found else None

    def _add_row(self, offset: int, row: dict[str, Any]) -> None:
        step = step_of(row)
        if step is None:
            return
        if not len(self.rows) and offset:
            self.health_from = step
        self.rows.append(Row(offset, row))
        self.last_time = row_time(row) or self.last_time
        self.health.take(step, row.get("health"))

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
                self._remove_rows(replaced)
            elif file == FILES["rollouts"]:
                self.completions.remove(lambda one, span=replaced: _within(one.offset, [span]))  # type: ignore[misc]
                self.version["rollouts"] += 1

    def _remove_rows(self, span: tuple[int, int]) -> None:
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
