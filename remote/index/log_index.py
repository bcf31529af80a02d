"""The index of one log, whatever its rows are: which file it belongs to, and how it follows that file.

An index is extended by the whole lines behind its offset. It is thrown away when it does not fit the file: another
device or inode, another head, other bytes before the offset, or a file shorter than the offset. A resume that
supersedes rows removes them.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir
from remote.agent.follow import open_log, sha256
from remote.index.lines import MAX_LINE
from remote.index.store import IndexStore, NoIndex
from remote.protocol import HEAD_BYTES, Cursor

USUAL = 1 << 18
"""Bytes that are read at once …"""
BLOCK = MAX_LINE + 1
"""… unless a line is longer."""
Ranges = list[tuple[int, int]]


class Superseded:
    """The superseded byte ranges of a run's logs, read again when its events changed."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._seen: tuple[int, ...] = ()
        self._ranges: dict[str, list[tuple[int, int]]] = {}

    def of(self, file: str) -> Ranges:
        """Disjoint ranges in order."""
        try:
            facts = os.stat(self.run.events_file)
            seen: tuple[int, ...] = (facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns)
        except (FileNotFoundError, NotADirectoryError):
            seen = ()
        if seen != self._seen:
            self._ranges, self._seen = (self.run.superseded() if seen else {}), seen
        return merged(self._ranges.get(file, []))


def merged(ranges: Ranges) -> Ranges:
    """Ranges as disjoint ones, in order."""
    found: Ranges = []
    for low, high in sorted(span for span in ranges if span[0] < span[1]):
        if found and low <= found[-1][1]:
            found[-1] = (found[-1][0], max(high, found[-1][1]))
        else:
            found.append((low, high))
    return found


def is_within(offset: int, ranges: Ranges) -> bool:
    """Whether an offset is in one of the disjoint ranges."""
    return bool(ranges) and range_end(offset, ranges) > offset


def range_end(offset: int, ranges: Ranges) -> int:
    """The end of the range that an offset is in; the offset itself if it is in none."""
    place = bisect_right(ranges, (offset, 1 << 63)) - 1
    return ranges[place][1] if place >= 0 and offset < ranges[place][1] else offset


class OpenLog:
    """The opened log."""

    def __init__(self, descriptor: int, path: str) -> None:
        """``path``: relative to the root, for cursors."""
        self.descriptor, self.path = descriptor, path
        facts = os.fstat(descriptor)
        self.size, self.device, self.inode = facts.st_size, facts.st_dev, facts.st_ino

    def close(self) -> None:
        os.close(self.descriptor)

    def cursor(self, offset: int) -> Cursor:
        """The cursor at an offset."""
        head = os.pread(self.descriptor, min(HEAD_BYTES, offset), 0)
        length = min(HEAD_BYTES, offset)
        tail = os.pread(self.descriptor, length, offset - length)
        if not offset:
            return Cursor(self.path)
        return Cursor(self.path, offset, len(head), sha256(head), sha256(tail), self.device, self.inode)

    def fits(self, cursor: Cursor) -> bool:
        """Whether the bytes before a cursor are this file's."""
        if not cursor.offset:
            return True
        if (cursor.device, cursor.inode) != (self.device, self.inode) or self.size < cursor.offset:
            return False
        return self.cursor(cursor.offset) == cursor


class LogIndex:
    """Base of the indexes. A subclass says what it keeps of each line."""

    file = ""
    """Name of the log in the run's ``logs/``."""

    store: IndexStore
    """Where it is kept; set before it is used."""

    def __init__(self, run: RunDir, root: Path, follow_links: bool) -> None:
        self.run, self._root, self._follow_links = run, root, follow_links
        self._superseded = Superseded(run)
        self.header: dict[str, Any] = self.empty()
        self.ranges: Ranges = []
        """Superseded ranges, as of the last look."""
        self.size = 0
        """Bytes of the log, as of the last look …"""
        self.whole = False
        """… and whether all its whole lines are indexed."""

    # --------------------------------------------------------------------------------------- what a subclass defines

    def empty(self) -> dict[str, Any]:
        """The header of an index without rows; a subclass adds its tables."""
        return {
            "cursor": {"path": "", "offset": 0, "head_length": 0, "head_sha256": ""},
            "skipped": 0,
            "inside": False,
            "superseded": [],
        }

    def begin(self) -> None:
        """Prepare to take lines after the header's."""
        raise NotImplementedError

    def take(self, offset: int, line: bytes) -> bool:
        """Take a line; returns whether it could be read."""
        raise NotImplementedError

    def end(self, header: dict[str, Any]) -> None:
        """Write what was taken to the store, and count it in the header. Raises Unwritable."""
        raise NotImplementedError

    def cut(self, header: dict[str, Any], offset: int) -> int | None:
        """Remove the rows from an offset on from a header; returns the offset of the first, None if there is none.

        Raises NoIndex."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------------------ extending

    @property
    def path(self) -> Path:
        """The log."""
        return self.run.logs / self.file

    def open(self) -> OpenLog | None:
        """The log; None if there is none. Raises RemoteError for what is not a log, and OSError."""
        return self._opened(self.path, self.relative_path)

    def open_log(self, file: str) -> OpenLog | None:
        """Another log of the run, as :meth:`open`."""
        return self._opened(self.run.logs / file, file)

    def superseded(self, file: str) -> Ranges:
        """Superseded ranges of another log of the run."""
        return self._superseded.of(file)

    def _opened(self, path: Path, name: str) -> OpenLog | None:
        try:
            return OpenLog(open_log(str(path), self._root, self._follow_links), name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @property
    def relative_path(self) -> str:
        """Path of the log relative to the root, as cursors have it."""
        path = self.path
        return str(path.relative_to(self._root) if path.is_relative_to(self._root) else path)

    def count(self, table: str) -> int:
        """Rows of a table."""
        return int(self.header["tables"][table]["rows"])

    def read(self, table: str, name: str, start: int, end: int) -> array[Any]:
        """Rows of a column. Raises NoIndex."""
        columns = self.header["tables"][table]["columns"]
        place = next(i for i, (known, _) in enumerate(columns) if known == name)
        code = columns[place][1]
        return self.store.read(table, place, code, start, end) if start < end else array(code)

    @property
    def offset(self) -> int:
        return int(self.header["cursor"]["offset"])

    @property
    def cursor(self) -> Cursor:
        return replace(Cursor.from_json(self.header["cursor"]), path=self.relative_path)

    def forget(self) -> None:
        """There is no log."""
        self.header, self.size, self.whole = self.empty(), 0, True

    def advance(self, source: OpenLog, goes_on: Callable[[], bool]) -> None:
        """Extend the index by a block, and further while ``goes_on()``; the store is locked.

        Raises Unwritable, and OSError for a log that cannot be read.
        """
        self._load(source)
        offset, inside, skipped = self.offset, bool(self.header["inside"]), 0
        length = min(HEAD_BYTES, offset)
        tail = os.pread(source.descriptor, length, offset - length)
        self.begin()
        self.whole = False
        while not self.whole and (offset == self.offset or goes_on()):
            data = os.pread(source.descriptor, min(USUAL, source.size - offset), offset)
            end = data.rfind(b"\n") + 1
            if not end:
                data = os.pread(source.descriptor, min(BLOCK, source.size - offset), offset)
                end = data.rfind(b"\n") + 1
            if not end and len(data) < BLOCK:
                self.whole = True  # what follows is not a whole line
                break
            if not end:  # a line that is too long: what there is of it is passed, and its end when it comes
                skipped += not inside and not is_within(offset, self.ranges)
                inside, end = True, len(data)
            else:
                start = offset
                for line in data[: end - 1].split(b"\n"):
                    if inside:
                        inside = False
                    elif not is_within(start, self.ranges) and not self.take(start, line):
                        skipped += 1
                    start += len(line) + 1
            tail = (tail + data[:end])[-HEAD_BYTES:]
            offset += end
            self.whole = offset == source.size
        if offset != self.offset:
            self._commit(source, offset, tail, skipped, inside)

    def _commit(self, source: OpenLog, offset: int, tail: bytes, skipped: int, inside: bool) -> None:
        # examined after the lines were read: a file that was truncated and written again meanwhile is not mixed
        if not source.fits(self.cursor):
            self.reset()
            return
        cursor = replace(source.cursor(offset), tail_sha256=sha256(tail))
        changed = {
            **self.header,
            "cursor": cursor.to_json(),
            "skipped": self.header["skipped"] + skipped,
            "inside": inside,
            "superseded": self.ranges,
        }
        self.end(changed)
        self.store.replace_header(changed)
        self.header = changed

    def _load(self, source: OpenLog) -> None:
        """The header on disk, if it is of this log and these superseded ranges; else as much as can be kept."""
        self.size = source.size
        # after the size: whatever superseded the rows before it is in the events
        self.ranges = self._superseded.of(self.file)
        try:
            self.header = self.store.header()
        except NoIndex:
            self.reset()
            return
        if not source.fits(self.cursor):
            self.reset()
            return
        removed, added = differences([(low, high) for low, high in self.header["superseded"]], self.ranges)
        if removed < self.offset or (added < self.offset and self.header["skipped"]):
            self.reset()
        elif added < self.offset:
            changed = {**self.header, "superseded": self.ranges}
            try:
                first = self.cut(changed, added)
            except NoIndex:
                self.reset()
                return
            if first is not None:
                changed["cursor"] = source.cursor(first).to_json()
            self.store.replace_header(changed)
            self.header = changed

    def reset(self) -> None:
        """Forget everything that was indexed."""
        self.store.clear()
        self.header, self.whole = self.empty(), False


def differences(known: Ranges, now: Ranges) -> tuple[int, int]:
    """The first offset that is in ``known`` only, and the first that is in ``now`` only; 2^63 where there is none."""
    removed = added = 1 << 63
    if known != now:
        for edge in sorted({edge for span in (*known, *now) for edge in span}):
            before, after = is_within(edge, known), is_within(edge, now)
            if before and not after:
                removed = min(removed, edge)
            elif after and not before:
                added = min(added, edge)
    return removed, added
