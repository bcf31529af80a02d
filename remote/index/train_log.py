"""The index of ``train_log.jsonl``, a column per metric, and the rows that a question about it is answered from.

Most rows have the same keys in the same order. For each such layout a getter takes the numbers out of a row at once;
rows become columns in batches.
"""

from __future__ import annotations

import os
from array import array
from itertools import repeat
from operator import itemgetter, le
from typing import Any

from grpo_train.run_dir.formats import RENAMED_KEYS
from remote.index.lines import MISSING, number, read_line, step_of, time_of
from remote.index.log_index import LogIndex, OpenLog, Ranges, is_within
from remote.index.store import MAX_INDEX_BYTES
from remote.protocol import Cursor, RemoteError
from remote.protocol.logs import HUGE

OFFSET, STEP, TIME = ":offset", ":step", ":time"
"""Columns that are not metrics; a metric's column has its name."""
BATCH = 512
MAX_METRICS = 2_000
"""Further metrics of a log are left out."""
MAX_LAYOUTS = 64
_NUMBERS = {float, int}
Values = tuple[Any, ...]


class ColumnLayout:
    """How the rows with some keys become columns."""

    def __init__(self, row: dict[str, Any], columns: dict[str, int]) -> None:
        """``columns``: number of each metric's column; those of new metrics are added."""
        keys: dict[int, str] = {}
        for key, value in row.items():
            name = RENAMED_KEYS.get(key, key)
            if number(value) == MISSING or not _is_metric(name):
                continue
            if name not in columns and len(columns) < MAX_METRICS:
                columns[name] = len(columns)
            if name in columns:
                keys[columns[name]] = key  # of two keys of one metric, the later one
        taken = set(keys.values())
        self.others = [key for key in row if key not in taken and _is_metric(RENAMED_KEYS.get(key, key))]
        self._get = itemgetter(*keys.values(), "step", "step")  # two more, so that it is always a tuple
        places = {column: place for place, column in enumerate(keys)}
        self.columns = len(columns)
        order = [places.get(column, -1) for column in range(self.columns)]
        self._order = None if order == list(range(len(keys))) else itemgetter(*order, -1, -1)

    def read(self, row: dict[str, Any]) -> Values | None:
        """The values of a row with these keys, by column; None where another layout is needed."""
        for key in self.others:
            if type(value := row[key]) in _NUMBERS or (type(value) is str and number(value) != MISSING):
                return None
        values: Values = self._get(row)[:-2]
        return values if self._order is None else self._order((*values, MISSING))[:-2]


def _is_metric(name: str) -> bool:
    return name not in ("step", "time") and 0 < len(name) <= 255 and name.isprintable()


class Stats:
    """What is known of a metric without reading its column."""

    def __init__(self, known: list[Any] | None = None) -> None:
        self.count, self.gaps, self.min, self.min_row, self.max, self.max_row, self.last_row = known or [
            0, 0, 0.0, -1, 0.0, -1, -1,
        ]  # fmt: skip

    def to_json(self) -> list[Any]:
        return [self.count, self.gaps, self.min, self.min_row, self.max, self.max_row, self.last_row]

    def add(self, values: array[float], row: int) -> None:
        """Add the values of the rows from ``row`` on."""
        low, high, finite = min(values), max(values), len(values)
        if not (-HUGE < sum(values) < HUGE and low > -HUGE and high < HUGE):  # no NaN, nothing missing
            kept = finite_of(values)
            finite = len(kept)
            present = len(values) - values.count(MISSING)
            self.gaps += present - finite
            if present:
                self.last_row = row + max(i for i in range(len(values)) if values[i] != MISSING)
            if not kept:
                return
            low, high = min(kept), max(kept)
        else:
            self.last_row = row + len(values) - 1
        if not self.count or low < self.min:
            self.min, self.min_row = low, row + values.index(low)
        if not self.count or high > self.max:
            self.max, self.max_row = high, row + values.index(high)
        self.count += finite


def finite_of(values: array[float]) -> list[float]:
    """The values that are neither missing, NaN nor infinite."""
    return [value for value in values if -HUGE < value < HUGE]


class TrainLogIndex(LogIndex):
    """The index of a run's ``train_log.jsonl``."""

    file = "train_log.jsonl"

    def empty(self) -> dict[str, Any]:
        fixed = [[OFFSET, "q"], [STEP, "d"], [TIME, "d"]]
        return {
            **super().empty(),
            "tables": {"rows": {"rows": 0, "columns": fixed}},
            "stats": [],
        }

    @property
    def rows(self) -> int:
        return self.count("rows")

    @property
    def names(self) -> list[str]:
        """The metrics, in the order in which they appeared in the log."""
        return [name for name, _ in self.header["tables"]["rows"]["columns"][3:]]

    def column(self, name: str) -> array[Any]:
        """A column, whole. Raises NoIndex."""
        return self.read("rows", name, 0, self.rows)

    def value(self, name: str, row: int) -> float:
        """One value of a column. Raises NoIndex."""
        return float(self.read("rows", name, row, row + 1)[0])

    def stats_of(self, name: str) -> Stats:
        return Stats(self.header["stats"][self.names.index(name)])

    def begin(self) -> None:
        self._columns = {name: place for place, name in enumerate(self.names)}
        self._layouts: dict[tuple[str, ...], ColumnLayout] = {}
        self._batch: list[Values] = []
        self._taken: list[array[Any]] = [array("q"), array("d"), array("d")]
        self._values: list[array[float]] = [array("d") for _ in self._columns]

    def take(self, offset: int, line: bytes) -> bool:
        row = read_line(line)
        if row is None or (step := step_of(row)) is None:
            return False
        keys = tuple(row)
        layout = self._layouts.get(keys)
        values = layout.read(row) if layout and layout.columns == len(self._columns) else None
        if values is None:
            values = self._with_new_layout(keys, row)
        if b"true" in line or b"false" in line:  # a column takes them as numbers
            values = tuple(map(number, values))
        self._batch.append(values)
        offsets, steps, times = self._taken
        offsets.append(offset)
        steps.append(step)
        times.append(time_of(row))
        if len(self._batch) == BATCH:
            self._flush()
        return True

    def _with_new_layout(self, keys: tuple[str, ...], row: dict[str, Any]) -> Values:
        known = len(self._columns)
        if len(self._layouts) >= MAX_LAYOUTS:
            self._layouts.clear()
        layout = self._layouts[keys] = ColumnLayout(row, self._columns)
        if len(self._columns) > known:
            self._flush()
            rows = self.rows + len(self._taken[0])
            if 8 * (len(self._columns) + 3) * rows > MAX_INDEX_BYTES:
                raise RemoteError("too_large", f"{self.file} has too many metrics and steps for an index")
            taken = len(self._taken[0])
            self._values += [array("d", repeat(MISSING, taken)) for _ in range(len(self._columns) - known)]
        values = layout.read(row)
        assert values is not None
        return values

    def _flush(self) -> None:
        """Turn the batch into columns."""
        if self._batch:
            for values, added in zip(self._values, zip(*self._batch, strict=True), strict=True):
                length = len(values)
                try:
                    values.extend(added)
                except TypeError:  # "NaN", or no number
                    del values[length:]
                    values.extend(map(number, added))
        self._batch.clear()

    def end(self, header: dict[str, Any]) -> None:
        self._flush()
        taken = len(self._taken[0])
        rows = self.rows
        if 8 * (len(self._columns) + 3) * (rows + taken) > MAX_INDEX_BYTES:
            raise RemoteError("too_large", f"{self.file} has too many metrics and steps for an index")
        if not taken:
            return
        known = len(self.names)
        for place, values in enumerate((*self._taken, *self._values)):
            if place >= known + 3 and rows:
                values = array("d", repeat(MISSING, rows)) + values
            self.store.write("rows", place, 0 if place >= known + 3 else rows, values)
        stats = [Stats(found) for found in self.header["stats"]]
        stats += [Stats() for _ in range(len(self._columns) - known)]
        for stat, values in zip(stats, self._values, strict=True):
            stat.add(values, rows)
        columns = [*self.empty()["tables"]["rows"]["columns"], *([name, "d"] for name in self._columns)]
        header["tables"] = {"rows": {"rows": rows + taken, "columns": columns}}
        header["stats"] = [stat.to_json() for stat in stats]

    def cut(self, header: dict[str, Any], offset: int) -> int | None:
        offsets = self.column(OFFSET)
        kept = sum(1 for found in offsets if found < offset)
        if kept == len(offsets):
            return None
        table = header["tables"]["rows"]
        header["tables"] = {"rows": {**table, "rows": kept}}
        header["stats"] = []
        for place in range(3, len(table["columns"])):
            stat = Stats()
            if kept:
                stat.add(self.store.read("rows", place, "d", 0, kept), 0)
            header["stats"].append(stat.to_json())
        return int(offsets[kept])


def is_sorted(values: array[float]) -> bool:
    """Whether a column never falls."""
    return all(map(le, values, values[1:]))


PLACES = 256
"""Rows that are looked for."""
CHUNK = 8_192
LONGEST = 1 << 18
"""Bytes that are searched for the end of a row."""
TAIL = 1 << 16


class Probes:
    """Rows of a log that is not indexed yet."""

    def __init__(self, source: OpenLog, ranges: Ranges) -> None:
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

    def fit(self, source: OpenLog, ranges: Ranges) -> bool:
        """Whether they are still rows of the log, and none is superseded since."""
        return ranges == self._ranges and source.fits(self.cursor)

    def _probe(self, source: OpenLog, place: int, ranges: Ranges) -> None:
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

    def _read_tail(self, source: OpenLog, start: int, ranges: Ranges) -> None:
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


class KnownColumns:
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
    layouts = [ColumnLayout(row, places) for _, row in rows]
    found: dict[str, array[Any]] = {
        OFFSET: array("q", [offset for offset, _ in rows]),
        STEP: array("d", [step_of(row) or 0.0 for _, row in rows]),
        TIME: array("d", [time_of(row) for _, row in rows]),
    }
    numbers = [layout.read(row) or () for layout, (_, row) in zip(layouts, rows, strict=True)]
    for name, place in places.items():
        found[name] = array("d", [number(values[place]) if place < len(values) else MISSING for values in numbers])
    return found
