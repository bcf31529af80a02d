"""The index of ``rollouts.jsonl``: where each sample is, what it was worth, and which samples a step has.

A line as the engine writes it has all that is kept before its texts, which are passed unread: that is five times faster
than parsing them. Any other line is parsed. A line that is damaged inside its texts is found when it is read.

Samples of one step that follow each other are a *segment*. All but the last are in a table; the last, which may grow,
is in the header.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from remote.index.lines import MISSING, number, read_completion, step_of
from remote.index.log_index import LogIndex
from remote.index.store import MAX_INDEX_BYTES
from remote.protocol import RemoteError
from remote.protocol.logs import HUGE

COLUMNS = (
    ("offset", "q"), ("step", "q"), ("group", "i"), ("sample", "i"), ("reward", "d"), ("advantage", "d"),
    ("length", "i"), ("flags", "H"), ("reason", "H"), ("problem", "i"),
)  # fmt: skip
OF_SEGMENTS = ("step", "group", "reward", "flags")
FLAGS = ("correct", "formatted", "flexible", "truncated", "discarded")
"""Two bits each: 0 is not known, 1 false, 2 true. ``discarded``: no step learned from it (rollout.filter_groups)."""
NO_REASON, OTHER_REASON = 0, 1
"""Numbers of reasons; the others are places in the header's list, from 2 on. OTHER_REASON is in the log only."""
MAX_REASONS = 1_000
ROW_BYTES = sum(array(code).itemsize for _, code in COLUMNS)
Sample = tuple[int, int, int, int, float, float, int, int, int, int]
"""A row of the columns. Of a mixture, problems of different tasks may have the same number."""

_STRING = rb'"(?:[^"\\]|\\.)*"'
_ANY = rb"(?:null|" + _STRING + rb"|-?[0-9][0-9.eE+-]*|true|false)"
_NUMBER = rb'(null|"NaN"|"-?Infinity"|-?[0-9]{1,15}(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)'
_FLAG = rb"(true|false|null)"
_COUNT = rb"([0-9]{1,9})"
_USUAL = re.compile(
    rb'\{"step": ' + _COUNT + rb', "time": "[^"\\]*", "group": ' + _COUNT + rb', "sample": ' + _COUNT
    + rb', "index": ' + _COUNT + rb', "reward": ' + _NUMBER + rb', "advantage": ' + _NUMBER
    + rb', "rewards": \{[^{}]*\}, "correct": ' + _FLAG + rb', "formatted": ' + _FLAG + rb', "flexible": ' + _FLAG
    + rb', "reason": (null|' + _STRING + rb'), "answer": ' + _ANY + rb', "gold": ' + _ANY + rb', "length": ' + _COUNT
    + rb', "truncated": ' + _FLAG + rb', "prompt": "'
)  # fmt: skip
_DISCARDED = re.compile(rb', "discarded": "[a-z_]+"\}$')
"""The last key of a line; inside of a text its quotes would be escaped."""
_BITS = {b"null": 0, b"false": 1, b"true": 2, None: 0, False: 1, True: 2}
_NUMBERS = {b"null": MISSING, b'"NaN"': float("nan"), b'"Infinity"': float("inf"), b'"-Infinity"': float("-inf")}


@dataclass
class Segment:
    """Samples of a step that follow each other. ``scored`` and what follows leave out discarded samples."""

    step: int
    first: int
    """Number of its first row."""
    samples: int
    scored: int
    reward: float
    """Sum of the rewards that are finite."""
    groups: int
    signal: int
    """Groups whose rewards differ."""


SEGMENT_COLUMNS = tuple((name, "d" if name == "reward" else "q") for name in Segment.__dataclass_fields__)


class Reasons:
    """Numbers of reasons."""

    def __init__(self, known: Sequence[str]) -> None:
        self.list = list(known)
        self._numbers: dict[Any, int] = {None: NO_REASON, **{text: i + 2 for i, text in enumerate(known)}}
        self._raw: dict[bytes, int] = {b"null": NO_REASON}

    def number(self, reason: Any) -> int:
        if not isinstance(reason, str):
            return NO_REASON
        found = self._numbers.get(reason)
        if found is None:
            if len(self.list) >= MAX_REASONS or len(reason) > 200:
                return OTHER_REASON
            self.list.append(reason)
            found = self._numbers[reason] = len(self.list) + 1
        return found

    def raw(self, text: bytes) -> int:
        """The number of a reason as it is in the log; -1 if it must be parsed."""
        found = self._raw.get(text, -1)
        if found < 0 and b"\\" not in text and len(self._raw) < MAX_REASONS:
            try:
                found = self._raw[text] = self.number(text[1:-1].decode())
            except UnicodeDecodeError:
                return -1
        return found


def read_sample(offset: int, line: bytes, reasons: Reasons) -> Sample | None:
    """A line as a row of the columns; None for one that cannot be read."""
    usual = _USUAL.match(line)
    if usual and line.endswith(b"}"):
        step, group, sample, problem, reward, advantage, *flags, reason, length, truncated = usual.groups()
        number_ = reasons.raw(reason)
        if number_ >= 0:
            bits = sum(_BITS[flag] << 2 * place for place, flag in enumerate((*flags, truncated)))
            bits |= _BITS[_DISCARDED.search(line, len(line) - 64) is not None] << 8
            return (
                offset, int(step), int(group), int(sample), _value(reward), _value(advantage), int(length), bits,
                number_, int(problem),
            )  # fmt: skip
    row = read_completion(line)
    if row is None or (found := step_of(row)) is None:
        return None
    bits = 0
    for place, flag in enumerate(FLAGS):
        value = row.get(flag)
        if flag == "discarded":
            value = isinstance(value, str) and re.fullmatch("[a-z_]+", value) is not None
        bits |= (_BITS[value] if isinstance(value, bool) else 0) << 2 * place
    return (
        offset,
        int(found),
        _count(row.get("group")),
        _count(row.get("sample")),
        number(row.get("reward")),
        number(row.get("advantage")),
        _count(row.get("length")),
        bits,
        reasons.number(row.get("reason")),
        _count(row.get("index")),
    )


def _value(text: bytes) -> float:
    found = _NUMBERS.get(text)
    return float(text) if found is None else found


def _count(value: Any) -> int:
    """A count; -1 for anything else."""
    found = number(value)
    return int(found) if 0 <= found < 1 << 31 else -1


def is_discarded(flags: int) -> bool:
    """Whether no step learned from a sample with these flags."""
    return flags >> 2 * FLAGS.index("discarded") & 3 == 2


def segments_of(
    first: int, steps: Sequence[int], groups: Sequence[int], rewards: Sequence[float], flags: Sequence[int]
) -> list[Segment]:
    """The segments of some rows, of which the first has the number ``first``."""
    found, start = [], 0
    for step, rows in groupby(steps):
        end = start + sum(1 for _ in rows)
        seen: dict[int, float | None] = {}
        signal: set[int] = set()
        scored, total = 0, 0.0
        for group, reward, bits in zip(groups[start:end], rewards[start:end], flags[start:end], strict=True):
            if is_discarded(bits):
                continue
            if not -HUGE < reward < HUGE:
                seen.setdefault(group, None)
                continue
            scored, total = scored + 1, total + reward
            known = seen.get(group)
            if known is None:
                seen[group] = reward
            elif known != reward:
                signal.add(group)
        found.append(Segment(step, first + start, end - start, scored, total, len(seen), len(signal)))
        start = end
    return found


class RolloutIndex(LogIndex):
    """The index of a run's ``rollouts.jsonl``."""

    file = "rollouts.jsonl"

    def empty(self) -> dict[str, Any]:
        return {
            **super().empty(),
            "tables": {
                "samples": {"rows": 0, "columns": [list(column) for column in COLUMNS]},
                "segments": {"rows": 0, "columns": [list(column) for column in SEGMENT_COLUMNS]},
            },
            "last": None,
            "reasons": [],
        }

    @property
    def rows(self) -> int:
        return self.count("samples")

    def begin(self) -> None:
        self.reasons = Reasons(self.header["reasons"])
        self._taken: list[Sample] = []
        self._columns: list[array[Any]] = [array(code) for _, code in COLUMNS]

    def take(self, offset: int, line: bytes) -> bool:
        sample = read_sample(offset, line, self.reasons)
        if sample is None:
            return False
        self._taken.append(sample)
        if len(self._taken) == 1_024:
            self._flush()
        return True

    def _flush(self) -> None:
        if self._taken:
            for values, added in zip(self._columns, zip(*self._taken, strict=True), strict=True):
                values.extend(added)
            self._taken.clear()

    def end(self, header: dict[str, Any]) -> None:
        self._flush()
        rows, taken = self.rows, len(self._columns[0])
        if (rows + taken) * ROW_BYTES > MAX_INDEX_BYTES:
            raise RemoteError("too_large", f"{self.file} has too many samples for an index")
        if not taken:
            return
        for place, values in enumerate(self._columns):
            self.store.write("samples", place, rows, values)
        # the last segment may continue
        last = header["last"]
        first = last["first"] if last else rows
        names = [name for name, _ in COLUMNS]
        columns = (self.read("samples", name, first, rows) + self._columns[names.index(name)] for name in OF_SEGMENTS)
        found = segments_of(first, *columns)
        closed = self.count("segments")
        for place, column in enumerate(zip(*map(astuple, found[:-1]), strict=True)):
            self.store.write("segments", place, closed, array(SEGMENT_COLUMNS[place][1], column))
        header["last"] = vars(found[-1])
        header["reasons"] = self.reasons.list
        header["tables"] = _counted(header["tables"], rows + taken, closed + len(found) - 1)

    def cut(self, header: dict[str, Any], offset: int) -> int | None:
        offsets = self.read("samples", "offset", 0, self.rows)
        kept = sum(1 for found in offsets if found < offset)
        if kept == len(offsets):
            return None
        firsts = self.read("segments", "first", 0, self.count("segments"))
        closed = sum(1 for first in firsts if first < kept)
        header["last"] = None
        if kept:
            last = header_first = self.header["last"]["first"]
            if last >= kept:
                closed -= 1
                header_first = firsts[closed]
            columns = (self.read("samples", name, header_first, kept) for name in OF_SEGMENTS)
            (segment,) = segments_of(header_first, *columns)
            header["last"] = vars(segment)
        header["tables"] = _counted(header["tables"], kept, closed)
        return int(offsets[kept])

    # -------------------------------------------------------------------------------------------------------- reading

    def segments(self) -> list[Segment]:
        """All segments, in the order of the file. Raises NoIndex."""
        closed = self.count("segments")
        columns = [self.read("segments", name, 0, closed) for name, _ in SEGMENT_COLUMNS]
        found = [Segment(*row) for row in zip(*columns, strict=True)]
        return [*found, Segment(**self.header["last"])] if self.header["last"] else found

    def segment_column(self, name: str) -> list[Any]:
        """One column of all segments. Raises NoIndex."""
        last = self.header["last"]
        return [*self.read("segments", name, 0, self.count("segments")), *([last[name]] if last else [])]

    def samples(self, first: int, end: int) -> list[Sample]:
        """Rows. Raises NoIndex."""
        return list(zip(*(self.read("samples", name, first, end) for name, _ in COLUMNS), strict=True))


class EvaluationIndex(RolloutIndex):
    """The index of the ``completions.jsonl`` of an evaluated step; its "run" is that step's folder."""

    file = "completions.jsonl"

    @property
    def path(self) -> Path:
        return self.run.path / self.file


def _counted(tables: dict[str, Any], samples: int, segments: int) -> dict[str, Any]:
    return {
        "samples": {**tables["samples"], "rows": samples},
        "segments": {**tables["segments"], "rows": segments},
    }
