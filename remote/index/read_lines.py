"""Lines of a file around a place, as rows of a reply."""

from __future__ import annotations

import os
from typing import Any

from remote.index.levels import Levels
from remote.index.log_index import Source
from remote.index.log_scan import LONGEST, Matches, line_start
from remote.index.patterns import Pattern
from remote.protocol.text import clean, last_state

CHUNK = 1 << 16
MOST = 1 << 18
"""Characters of a reply; one line may have more."""
STATES = 1 << 20
"""Bytes at the end of a line in which its last state is searched for."""
Row = dict[str, Any]
Found = tuple[list[Row], int, bool, bool]
"""Lines, where the next one begins, and whether there are none before and none after."""


class Reader:
    """Reads lines of one file."""

    def __init__(self, source: Source, levels: Levels, pattern: Pattern | None, characters: int) -> None:
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
