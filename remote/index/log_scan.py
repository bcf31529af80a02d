"""What is known of a whole log (how many lines, where those are that matter), and its lines around a place.

Nothing of it is kept on disk: counting the lines of 1 GB takes half a second.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import Any

from remote.index.log_index import OpenLog
from remote.index.patterns import Levels, Pattern
from remote.protocol import Cursor
from remote.protocol.logs import MAX_KEPT
from remote.protocol.text import clean, last_state

BLOCK = 1 << 20
LONGEST = 1 << 24
"""Bytes of a line; a longer one is taken as several."""
OPEN = 1 << 20
"""Bytes of a line without its end that are searched."""
Goes = Callable[[], bool]


class Scan:
    """Base: a scan belongs to one file, and begins again when another one is at its path."""

    def __init__(self) -> None:
        self._known = Cursor("")
        self.size = 0

    def fits(self, source: OpenLog) -> bool:
        """Whether the bytes that were scanned are this file's."""
        return source.fits(self._known)

    def advance(self, source: OpenLog, goes_on: Goes) -> None:
        """Scan at least a block, unless all is scanned, and further while ``goes_on()``."""
        raise NotImplementedError

    @property
    def share(self) -> float:
        """Of the file's bytes, as of the last look, that are scanned."""
        raise NotImplementedError


class LineCount(Scan):
    """The number of lines up to each block, counted from the beginning."""

    def __init__(self) -> None:
        super().__init__()
        self._before = array("Q", [0])
        """Ends of lines before each block, the next one last."""

    @property
    def _scanned(self) -> int:
        return (len(self._before) - 1) * BLOCK

    @property
    def share(self) -> float:
        whole = self.size - self.size % BLOCK
        return min(1.0, self._scanned / whole) if whole else 1.0

    def advance(self, source: OpenLog, goes_on: Goes) -> None:
        self.size = source.size
        began = self._scanned
        while self._scanned + BLOCK <= source.size and (self._scanned == began or goes_on()):
            ends = os.pread(source.descriptor, BLOCK, self._scanned).count(b"\n")
            self._before.append(self._before[-1] + ends)
        if self._scanned != began:
            self._known = source.cursor(self._scanned)

    def total(self, source: OpenLog) -> int:
        """Lines of the file, one without its end included; an estimate while not all are counted."""
        if self.share < 1:
            return self._estimate(source.size)
        rest = os.pread(source.descriptor, source.size - self._scanned, self._scanned)
        last = rest[-1:] or (os.pread(source.descriptor, 1, source.size - 1) if source.size else b"\n")
        return self._before[-1] + rest.count(b"\n") + (last != b"\n")

    def number(self, source: OpenLog, offset: int) -> int:
        """The number, from 1, of the line that begins at an offset; an estimate where it is not counted."""
        block = offset // BLOCK
        if block >= len(self._before):
            return self._estimate(offset) + 1
        return self._before[block] + os.pread(source.descriptor, offset - block * BLOCK, block * BLOCK).count(b"\n") + 1

    def offset(self, source: OpenLog, number: int) -> int:
        """A byte of the line with a number, from 1; an estimate where it is not counted."""
        wanted = max(0, number - 1)  # ends of lines before it
        block = bisect_left(self._before, wanted) - 1
        if block < 0:
            return 0
        if block == len(self._before) - 1 and self.share < 1:
            return min(source.size, int(wanted * self._bytes_per_line(source)))
        left, place = wanted - self._before[block], block * BLOCK
        data = os.pread(source.descriptor, BLOCK, place)
        at = -1
        for _ in range(left):
            if (at := data.find(b"\n", at + 1)) < 0:
                return source.size  # there are fewer lines
        return min(source.size, place + at + 1)

    def _bytes_per_line(self, source: OpenLog) -> float:
        if self._before[-1]:
            return self._scanned / self._before[-1]
        first = os.pread(source.descriptor, BLOCK, 0)
        return len(first) / max(1, first.count(b"\n"))

    def _estimate(self, size: int) -> int:
        return int(size * self._before[-1] / self._scanned) if self._scanned else 0


class Matches(Scan):
    """The lines that a matcher finds, the newest first, then those that are added."""

    def __init__(self, find: Callable[[bytes], list[tuple[int, int]]]) -> None:
        super().__init__()
        self._find = find
        self._low: int | None = None
        self._high = 0
        """All lines that begin from low on and before high are scanned."""
        self._older, self._newer = array("Q"), array("Q")
        """Where matches begin: before the first look, the last one first; and after it, in order."""
        self._not_kept = 0
        self._is_behind = False
        """Whether lines that were added are not scanned yet."""
        self._open: list[int] = []
        """The last line, if it matches and its end is not written yet."""

    @property
    def share(self) -> float:
        if self._low is None:
            return 0.0
        end = self.size if self._is_behind else self._high
        return (self._high - self._low) / end if end else 1.0

    def advance(self, source: OpenLog, goes_on: Goes) -> None:
        grown, self.size = self._is_behind or source.size != self.size, source.size
        self._is_behind = False
        if self._low is None:
            self._low = self._high = line_start(source, source.size)
        elif grown:
            self._forward(source, goes_on)
        if grown:
            rest = os.pread(source.descriptor, OPEN, self._high) if self._high < source.size else b""
            is_whole = b"\n" in rest  # not all that was added is scanned yet
            self._open = [self._high + begin for begin, _ in self._find(rest)] if rest and not is_whole else []
            self._known = source.cursor(self._high)
        began = self._low
        while self._low and (self._low == began or goes_on()):
            self._backward(source, self._low)

    def _forward(self, source: OpenLog, goes_on: Goes) -> None:
        began, length = self._high, BLOCK
        while self._high < source.size and (self._high == began or goes_on()):
            data = os.pread(source.descriptor, min(length, source.size - self._high), self._high)
            end = data.rfind(b"\n") + 1
            if not end and len(data) >= LONGEST:
                end = len(data)
            if not end and self._high + len(data) >= source.size:
                return
            length = BLOCK if end else 2 * length
            self._newer.extend(self._high + begin for begin, _ in self._find(data[:end]))
            self._high += end
        self._is_behind = self._high < source.size

    def _backward(self, source: OpenLog, low: int) -> None:
        length, begin, data = BLOCK, 0, b""
        while True:
            start = max(0, low - length)
            data = os.pread(source.descriptor, low - start, start)
            begin = 0 if start == 0 else data.find(b"\n") + 1
            if start == 0 or 0 < begin < len(data):
                break
            if length >= LONGEST:
                begin = 0
                break
            length *= 2
        found = array("Q", [start + begin + at for at, _ in self._find(data[begin:])])
        found.reverse()
        room = max(0, MAX_KEPT - len(self._older))
        self._older.extend(found[:room])
        self._not_kept += max(0, len(found) - room)
        self._low = start + begin

    @property
    def total(self) -> int:
        """Matching lines so far."""
        return self._not_kept + self._count

    @property
    def left_off(self) -> int:
        """The oldest matches, which are counted and not known by place."""
        return self._not_kept

    @property
    def _count(self) -> int:
        return len(self._older) + len(self._newer) + len(self._open)

    def _at(self, index: int) -> int:
        """Where the match with an index begins, of those that are known by place, in order."""
        if index < len(self._older):
            return self._older[-1 - index]
        index -= len(self._older)
        return self._newer[index] if index < len(self._newer) else self._open[index - len(self._newer)]

    def index(self, offset: int) -> int:
        """How many of the matches that are known by place begin before an offset."""
        low, high = 0, self._count
        while low < high:
            middle = (low + high) // 2
            if self._at(middle) < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def between(self, first: int, end: int) -> list[int]:
        """Where the matches with these indexes begin."""
        return [self._at(index) for index in range(max(0, first), min(end, self._count))]


def line_start(source: OpenLog, offset: int) -> int:
    """The last place at or before an offset where a line begins; within a line that is too long, the offset."""
    end = min(offset, source.size)
    length = 1 << 13
    while True:
        start = max(0, end - length)
        found = os.pread(source.descriptor, end - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        if start == 0:
            return 0
        if length >= LONGEST:
            return end
        length *= 8


CHUNK = 1 << 16
MOST = 1 << 18
"""Characters of a reply; one line may have more."""
STATES = 1 << 20
"""Bytes at the end of a line in which its last state is searched for."""
Row = dict[str, Any]
Found = tuple[list[Row], int, bool, bool]
"""Lines, where the next one begins, and whether there are none before and none after."""


class LineReader:
    """Reads lines of one file."""

    def __init__(self, source: OpenLog, levels: Levels, pattern: Pattern | None, characters: int) -> None:
        self._source, self._levels, self._pattern, self._characters = source, levels, pattern, characters
        self._room = MOST

    def around(self, at: int, before: int, after: int) -> Found:
        """Lines before and from a place on, at which a line begins, or the file's end."""
        later, end = self._from(at, after)
        earlier: list[Row] = []
        begin = at
        while len(earlier) < before and begin > 0 and self._room > 0:
            previous = line_start(self._source, begin - 1)
            if previous and self._pread(previous - 1, 1) != b"\n":  # within a line that is too long
                previous = max(0, begin - LONGEST)
            earlier.append(self._row(previous, begin - previous))
            begin = previous
        return [*reversed(earlier), *later], end, begin == 0, end >= self._source.size

    def of_level(self, matches: Matches, at: int, before: int, after: int) -> Found:
        """The same of the lines that are found so far."""
        index = matches.index(at)
        rows: list[Row] = []
        end = at
        place = index
        for begin in matches.between(index, index + after):
            if self._room <= 0:
                break
            rows.append(self._row(begin, self._length(begin)))
            end, place = begin + rows[-1]["length"], place + 1
        earlier: list[Row] = []
        for begin in reversed(matches.between(index - before, index)):
            if self._room <= 0:
                break
            earlier.append(self._row(begin, self._length(begin)))
        is_first = index == len(earlier) and matches.share >= 1 and not matches.left_off
        is_last = not matches.between(place, place + 1)
        return [*reversed(earlier), *rows], self._source.size if is_last else end, is_first, is_last

    def _from(self, at: int, count: int) -> tuple[list[Row], int]:
        rows: list[Row] = []
        while len(rows) < count and at < self._source.size and self._room > 0:
            length = self._length(at)
            rows.append(self._row(at, length))
            at += length
        return rows, at

    def _length(self, begin: int) -> int:
        """Bytes of the line that begins at a place, with its end."""
        place, length = begin, 1 << 12
        while place - begin < LONGEST:
            data = self._pread(place, length)
            if (end := data.find(b"\n")) >= 0:
                return place + end + 1 - begin
            place += len(data)
            if not data:
                break
            length = min(1 << 20, 2 * length)
        return place - begin

    def _row(self, begin: int, length: int) -> Row:
        # four bytes a character at most; of a progress bar the last state, which is at the end
        data = self._pread(begin, min(length, max(4 * self._characters + CHUNK, STATES)))
        is_cut = length > len(data)
        last = self._pread(begin + length - STATES, STATES) if is_cut else data
        if b"\r" in last.rstrip(b"\r\n"):
            data, is_cut = last, False
        is_open = begin + length >= self._source.size and not last.endswith(b"\n")
        text = data.removesuffix(b"\n").decode(errors="replace")
        text = clean(last_state(text), keep="\t").expandtabs(4)
        cut = len(text) > self._characters or is_cut
        text = text[: self._characters]
        self._room -= len(text) + 64
        row = {"offset": begin, "length": length, "text": text, "cut": cut, "open": is_open}
        if level := self._levels.of(data):
            row["level"] = level
        if self._pattern is not None and (marks := self._pattern.spans(text)):
            row["marks"] = marks
        return row

    def _pread(self, offset: int, count: int) -> bytes:
        """Bytes of the file, most of the time from the block that was read last."""
        inside = offset - self._start
        if inside < 0 or inside + count > len(self._data):
            if count >= CHUNK:
                return os.pread(self._source.descriptor, count, offset)
            self._start = max(0, offset - CHUNK // 2)
            self._data = os.pread(self._source.descriptor, CHUNK + CHUNK, self._start)
            inside = offset - self._start
        return self._data[inside : inside + count]

    _start = 0
    _data = b""
