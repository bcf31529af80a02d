"""The rows that a question about ``train_log.jsonl`` is answered from: all of the index or, until it is whole, rows
from evenly spaced places and the last ones."""

from __future__ import annotations

import os
from array import array
from typing import Any

from remote.index.lines import MISSING, number, read_line, step_of, time_of
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

    def __init__(self, source: Source, ranges: Ranges) -> None:
        self.end = 0
        """Offset after the last whole line."""
        self._found: dict[int, dict[str, Any]] = {}
        last = max(0, source.size - TAIL)
        for i in range(PLACES):
            self._probe(source, last * i // PLACES, ranges)
        self._read_tail(source, last, ranges)
        self.columns = _columns_of(sorted(self._found.items(), key=lambda one: one[0]))
        self._found.clear()
        self._ranges, self.cursor = ranges, source.cursor(self.end)

    def fit(self, source: Source, ranges: Ranges) -> bool:
        """Whether they are still rows of the log, and none is superseded since."""
        return ranges == self._ranges and source.fits(self.cursor)

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
        position = data.find(b"\n") + 1 if start else 0
        while (end := data.find(b"\n", position)) >= 0:
            self._take(start + position, data[position:end], ranges)
            position = end + 1
        self.end = start + position

    def _take(self, offset: int, line: bytes, ranges: Ranges) -> None:
        if offset not in self._found and not is_within(offset, ranges):
            row = read_line(line)
            if row is not None and step_of(row) is not None:
                self._found[offset] = row


class Snapshot:
    """Columns that a question is answered from: those of the index or, while it is in progress, those of probes."""

    def __init__(self, index: TrainLogIndex, probes: Probes | None) -> None:
        self._index = index
        self._probed: dict[str, array[Any]] | None = None
        self.is_whole = probes is None
        self.skipped = int(index.header["skipped"])
        self.rows, self.offset, self.progress = index.rows, index.offset, 1.0
        names = index.names
        if probes is not None:
            self._probed = probes.columns
            self.rows, self.offset = len(self._probed[OFFSET]), probes.end
            self.progress = index.offset / max(1, index.size)
            names = [name for name in self._probed if not name.startswith(":")]
        self.names = sorted(names)
        self.cursor = probes.cursor if probes else index.cursor if index.offset else Cursor(index.relative_path)

    def column(self, name: str) -> array[Any]:
        """A column, whole; of a metric that the log does not have, MISSING."""
        if self._probed is not None:
            found = self._probed.get(name)
        else:
            found = self._index.column(name) if name in self.names or name[:1] == ":" else None
        return array("d", [MISSING]) * self.rows if found is None else found

    def stats(self, name: str) -> Stats:
        """What is known of a metric."""
        if self._probed is None:
            return self._index.stats_of(name) if name in self.names else Stats()
        stats = Stats()
        if name in self._probed and self.rows:
            stats.add(self._probed[name], 0)
        return stats

    def at(self, name: str, row: int) -> float:
        """One value."""
        return float(self._probed[name][row]) if self._probed is not None else self._index.value(name, row)


def _columns_of(rows: list[tuple[int, dict[str, Any]]]) -> dict[str, array[Any]]:
    places: dict[str, int] = {}
    layouts = [Layout(row, places) for _, row in rows]
    found: dict[str, array[Any]] = {
        OFFSET: array("q", [offset for offset, _ in rows]),
        STEP: array("d", [step_of(row) or 0.0 for _, row in rows]),
        TIME: array("d", [time_of(row) for _, row in rows]),
    }
    numbers = [layout.read(row) or () for layout, (_, row) in zip(layouts, rows, strict=True)]
    for name, place in places.items():
        found[name] = array("d", [number(values[place]) if place < len(values) else MISSING for values in numbers])
    return found
