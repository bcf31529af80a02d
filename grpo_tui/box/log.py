"""The followed run, built from the bytes of its logs: lines, rows, metrics, completions, console. No Textual."""

from __future__ import annotations

import statistics
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from grpo_train.run_dir.files import parse_time, to_float
from grpo_tui.box.asking import LIVE_S, REST_S, Asking
from grpo_tui.box.events import Health, RunEvents, records_of
from grpo_tui.box.formatting import one_line
from remote.gate import log_row, log_text
from remote.protocol.logs import HUGE

MAX_LINE = 1 << 20
"""Maximum bytes of a line. A longer line is dropped."""

Item = TypeVar("Item")


class LineSplitter:
    """Splits a byte stream into lines with their byte offsets, independent of how the bytes were chunked."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._skip_first = False
        self._overflow = False
        self._next: int | None = None
        """Offset of the next expected byte; None before the first one."""

    def feed(self, offset: int, data: bytes) -> list[tuple[int, bytes]]:
        """Lines that are complete now, each with the offset of its first byte and without its newline."""
        if self._next is not None and offset != self._next:  # bytes are missing: the pending line is incomplete
            self._rest.clear()
            self._skip_first, self._overflow = True, False
        found = []
        line_start = offset if self._overflow else offset - len(self._rest)
        position = 0
        while (end := data.find(b"\n", position)) >= 0:
            if self._overflow or self._skip_first:
                self._overflow = self._skip_first = False
            else:
                found.append((line_start, bytes(self._rest + data[position:end])))
            self._rest.clear()
            position = end + 1
            line_start = offset + position
        if not self._overflow:
            self._rest += data[position:]
            if len(self._rest) > MAX_LINE:
                self._rest.clear()
                self._overflow = True
        self._next = offset + len(data)
        return found


class LineBuffer(Generic[Item]):
    """The last items of a log: at most ``limit``, and of at most ``weight`` bytes in all unless one alone has more.

    The index of an item never changes, so it can serve as a scroll position.
    """

    def __init__(self, limit: int, weight: int = 1 << 24) -> None:
        self._limit, self._most = limit, weight
        self._items: deque[Item] = deque()
        self._weights: deque[int] = deque()
        self._weight = 0
        self.first = 0
        """Index of the oldest item kept."""

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items)

    @property
    def end(self) -> int:
        """One past the index of the newest item."""
        return self.first + len(self._items)

    @property
    def last(self) -> Item | None:
        return self._items[-1] if self._items else None

    def append(self, item: Item, weight: int = 0) -> None:
        """Add an item of about ``weight`` bytes."""
        self._items.append(item)
        self._weights.append(weight)
        self._weight += weight
        while len(self._items) > self._limit or (self._weight > self._most and len(self._items) > 1):
            self._items.popleft()
            self._weight -= self._weights.popleft()
            self.first += 1

    def get(self, index: int) -> Item | None:
        """The item with this index, or None if it is not kept."""
        position = index - self.first
        return self._items[position] if 0 <= position < len(self._items) else None

    def remove(self, unwanted: Callable[[Item], bool]) -> None:
        """Remove the items for which ``unwanted`` holds."""
        kept = [pair for pair in zip(self._items, self._weights, strict=True) if not unwanted(pair[0])]
        self._items = deque(item for item, _ in kept)
        self._weights = deque(weight for _, weight in kept)
        self._weight = sum(self._weights)


@dataclass
class LogFiles:
    """The list of files of one run."""

    run: str
    files: list[dict[str, Any]] = field(default_factory=list)
    left_off: int = 0
    asking: Asking = field(default_factory=Asking)

    def due(self, is_live: bool) -> bool:
        """Whether to ask for the list now; the request is in flight then."""
        return self.asking.begin("files", LIVE_S if is_live else REST_S)

    def answer(self, reply: Mapping[str, Any]) -> None:
        self.files, self.left_off = reply["files"], reply["left_off"]
        self.asking.end("files")

    def instead(self, none: str, connected: bool = True) -> str:
        """What is said without a file: ``none`` if the run has none, else what is waited for, or why it failed."""
        is_known = self.asking.is_answered and not self.asking.problem
        return none if is_known else self.asking.instead(connected)

    def name(self, path: str) -> str:
        """Short name of a file."""
        return next((file.get("name", path) for file in self.files if file["path"] == path), path.rpartition("/")[2])


Span = tuple[int, int]
"""First and last byte, the last one not included."""
ROWS_KEPT = 5_000
CONSOLE_KEPT = 5_000
COMPLETIONS_KEPT = 256
TEXT_KEPT = 20_000
"""Maximum characters of a prompt or completion, so that memory stays bounded."""
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
TAILED = frozenset({"train_log", "rollouts", "console"})
"""Logs that may have gigabytes: only their end is fetched. The curves of the whole training log come from the box."""
RECENT = 15
"""Rows whose mean is a recent value."""


def run_path(run: str) -> str:
    """Path of a run's directory, relative to the root."""
    return f"training_runs/{run}"


def log_path(run: str, log: str) -> str:
    """Path of a run's log, relative to the root."""
    return f"{run_path(run)}/logs/{FILES[log]}"


@dataclass(frozen=True)
class RolloutRow:
    """A row of rollouts.jsonl."""

    offset: int
    step: int
    prompt: str
    text: str
    reward: float | None
    answer: str = ""
    time: float = 0.0
    correct: bool | None = None
    """What the grader said; None without one."""

    @property
    def is_good(self) -> bool:
        """Whether it is correct; where nobody graded it, whether it was rewarded."""
        return self.correct if self.correct is not None else self.reward is not None and self.reward > 0


@dataclass(frozen=True)
class TrainLogRow:
    """A row of train_log.jsonl; formatted only when it is on the screen."""

    offset: int
    fields: dict[str, Any]


@dataclass
class RunLogs:
    """The logs of one run. ``version[LOG]`` increases with every change of that log's content."""

    run: str
    rows: LineBuffer[TrainLogRow] = field(default_factory=lambda: LineBuffer(ROWS_KEPT, ROWS_WEIGHT))
    completions: LineBuffer[RolloutRow] = field(default_factory=lambda: LineBuffer(COMPLETIONS_KEPT))
    console: LineBuffer[str] = field(default_factory=lambda: LineBuffer(CONSOLE_KEPT))
    happened: RunEvents = field(default_factory=RunEvents)
    superseded: dict[str, list[Span]] = field(default_factory=dict)
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
            self.rows = LineBuffer(ROWS_KEPT, ROWS_WEIGHT)
            self.last_time, self.health, self.health_from = None, Health(), None
        elif log == "events":
            self.superseded, self.happened = {}, RunEvents()
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
                text = log_text(line)
                self.console.append(text, sys.getsizeof(text))
            return False
        superseded = self.superseded.get(FILES[log], [])
        replaced: dict[str, list[Span]] = {}
        for offset_of_line, line in lines:
            row = None if _within(offset_of_line, superseded) else log_row(line)
            if row is None:
                continue
            if log == "train_log":
                self._add_row(offset_of_line, row)
            elif log == "rollouts":
                one = completion_of(offset_of_line, row)
                self.completions.append(one, sys.getsizeof(one.prompt) + sys.getsizeof(one.text))
            else:
                self.happened.take(offset_of_line, row_step(row), row_time(row), row)
                _collect(row, replaced)
        if replaced:
            self._supersede(replaced)
        return FILES["train_log"] in replaced

    @property
    def last_step(self) -> int | None:
        """The step of the newest row."""
        row = self.rows.last
        return row_step(row.fields) if row else None

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
            if value is not None and abs(value) < HUGE:
                found.append(value)
                if len(found) == RECENT:
                    break
        return statistics.fmean(found) if found else None

    def stage_times(self) -> list[tuple[str, float]]:
        """Mean seconds of each stage (``time/*`` except ``time/step``) over recent steps, longest first.

        A stage that took no time is left out.
        """
        last = self.rows.last
        keys = [key for key in last.fields if key.startswith("time/") and key != "time/step"] if last else []
        found = [(key.removeprefix("time/"), self.recent(key) or 0.0) for key in keys]
        return sorted((stage for stage in found if stage[1] > 0), key=lambda stage: -stage[1])

    def _add_row(self, offset: int, row: dict[str, Any]) -> None:
        step = row_step(row)
        if step is None:
            return
        records = records_of(row.get("health")) if isinstance(row.get("health"), list) else None
        fields = _shown_fields(row)
        weight = sum(100 + sys.getsizeof(key) + sys.getsizeof(value) for key, value in fields.items())
        if records is not None:
            fields["health"] = records
            weight += sum(sys.getsizeof(text) for record in records for text in record.values())
        if not len(self.rows) and offset:
            self.health_from = step
        self.rows.append(TrainLogRow(offset, fields), weight)
        self.last_time = row_time(row) or self.last_time
        self.health.take(step, records)

    def _supersede(self, replaced: dict[str, list[Span]]) -> None:
        """Remove what resumes replaced: byte ranges of each log."""
        for file, spans in replaced.items():
            known = self.superseded.setdefault(file, [])
            known[:] = _merged(known + spans)[:RANGES_KEPT]
        if FILES["train_log"] in replaced:
            self._remove_rows(_merged(replaced[FILES["train_log"]]))
        if FILES["rollouts"] in replaced:
            ranges = _merged(replaced[FILES["rollouts"]])
            self.completions.remove(lambda one: _within(one.offset, ranges))
            self.version["rollouts"] += 1

    def _remove_rows(self, spans: list[Span]) -> None:
        self.rows.remove(lambda row: _within(row.offset, spans))
        self.last_time = row_time(self.rows.last.fields) if self.rows.last else None
        self.health = Health()
        for row in self.rows:
            self.health.take(row_step(row.fields) or 0, row.fields.get("health"))
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


def row_step(row: dict[str, Any]) -> int | None:
    """Step of a row, or None without a usable one."""
    step = to_float(row.get("step"))
    return int(step) if step is not None and abs(step) <= LAST_STEP else None


def row_time(row: dict[str, Any]) -> float | None:
    """Time of a row in seconds since the epoch, or None."""
    try:
        return parse_time(str(row["time"]))
    except (KeyError, ValueError, OverflowError):
        return None


def completion_of(offset: int, row: dict[str, Any]) -> RolloutRow:
    """A completion from its row. A long prompt keeps its end, which has the question."""
    answer = row.get("gold")
    return RolloutRow(
        offset=offset,
        step=row_step(row) or 0,
        prompt=str(row.get("prompt", ""))[-TEXT_KEPT:],
        text=str(row.get("completion", ""))[:TEXT_KEPT],
        reward=to_float(row.get("reward")),
        answer="" if answer is None else str(answer)[:200],
        time=row_time(row) or 0.0,
        correct=correct if isinstance(correct := row.get("correct"), bool) else None,
    )
