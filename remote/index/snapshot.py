"""The rows that a question about ``train_log.jsonl`` is answered from: the indexed ones and, until the index stands,
rows from evenly spaced places behind them and the last ones."""

from __future__ import annotations

import os
from array import array
from typing import Any

from remote.index.lines import MISSING, read_line, step_of, time_of
from remote.index.log_index import Ranges, Source, is_within
from remote.index.train_log import OFFSET, STEP, TIME, Layout, Stats, TrainLogIndex
from remote.protocol import Cursor

PLACES = 256
"""Rows that are looked for."""
CHUNK = 8_192
LONGEST = 1 << 18
"""Bytes that are searched for the end of a row."""
TAIL = 1 << 16


class Probes:
    """Rows of a log that is not indexed yet."""

    def __init__(self, source: Source, start: int, ranges: Ranges) -> None:
        """Rows of ``source`` from the offset ``start`` on."""
        self.end = start
        """Offset behind the last whole line."""
        self.found: dict[int, dict[str, Any]] = {}
        last = max(start, source.size - TAIL)
        for i in range(PLACES):
            self._probe(source, start + (last - start) * i // PLACES, ranges)
        self._read_tail(source, last, ranges)

    def _probe(self, source: Source, place: int, ranges: Ranges) -> None:
        """Read the first whole line behind a place."""
        size, data = CHUNK, b""
        while size <= LONGEST:
            data = os.pread(source.descriptor, size, max(0, place - 1))
            begin = data.find(b"\n") + 1 if place else 0
            end = data.find(b"\n", begin)
            if (begin or not place) and end >= 0:
                self._take(max(0, place - 1) + begin, data[begin:end], ranges)
                return
            if len(data) < size:
                return
            size *= 8

    def _read_tail(self, source: Source, start: int, ranges: Ranges) -> None:
        data = os.pread(source.descriptor, source.size - start, start)
        position = 0 if start == self.end else data.find(b"\n") + 1
        while (end := data.find(b"\n", position)) >= 0:
            self._take(start + position, data[position:end], ranges)
            position = end + 1
        self.end = start + position if position else self.end

    def _take(self, offset: int, line: bytes, ranges: Ranges) -> None:
        if offset not in self.found and not is_within(offset, ranges):
            row = read_line(line)
            if row is not None and step_of(row) is not None:
                self.found[offset] = row


class Snapshot:
    """Columns of an index, extended by probes. Columns are read when they are asked for."""

    def __init__(self, index: TrainLogIndex, source: Source | None, probes: Probes | None) -> None:
        self._index = index
        self.skipped = int(index.header["skipped"])
        self.indexed = index.rows
        self.is_whole = index.whole
        self.progress = 1.0 if index.whole or not index.size else index.offset / index.size
        self.offset = index.offset
        extra: list[tuple[int, dict[str, Any]]] = []
        if probes is not None and not self.is_whole:
            extra = sorted((offset, row) for offset, row in probes.found.items() if offset >= index.offset)
            self.offset = max(index.offset, probes.end)
        self.cursor = source.cursor(self.offset) if source else Cursor(f"{index.relative_path}")
        self._extra = _columns_of(extra)
        self.rows = self.indexed + len(extra)
        self._known = set(index.names)
        self.names = sorted(self._known | {name for name in self._extra if not name.startswith(":")})

    def column(self, name: str) -> array[Any]:
        """A column, whole; of a metric that the log does not have, MISSING."""
        if name in (OFFSET, STEP, TIME) or name in self._known:
            values = self._index.column(name)
        else:
            values = array("d", [MISSING]) * self.indexed
        more = self.rows - self.indexed
        return values + self._extra.get(name, array("d", [MISSING]) * more) if more else values

    def stats(self, name: str) -> Stats:
        """What is known of a metric."""
        known = self._index.stats_of(name) if name in self._known else Stats()
        if name in self._extra:
            known.add(self._extra[name], self.indexed)
        return known

    def at(self, name: str, row: int) -> float:
        """One value."""
        if row >= self.indexed:
            return float(self._extra[name][row - self.indexed])
        return self._index.value(name, row)


def _columns_of(rows: list[tuple[int, dict[str, Any]]]) -> dict[str, array[Any]]:
    if not rows:
        return {}
    places: dict[str, int] = {}
    layouts = [Layout(row, places) for _, row in rows]
    found: dict[str, array[Any]] = {
        OFFSET: array("q", [offset for offset, _ in rows]),
        STEP: array("d", [step_of(row) or 0.0 for _, row in rows]),
        TIME: array("d", [time_of(row) for _, row in rows]),
    }
    numbers = [layout.read(row) or () for layout, (_, row) in zip(layouts, rows, strict=True)]
    for name, place in places.items():
        found[name] = array("d", [values[place] if place < len(values) else MISSING for values in numbers])
    return found
