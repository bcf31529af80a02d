"""One followed log: each byte from a cursor on, once; another file at its path is reported as rotated.

While a subscription stands, the opened file is kept: renamed, it is read to its end before its successor is begun, and
another inode is a rotation whatever its first bytes are. A cursor of an earlier connection fits any file with its first
bytes and its last ones before the offset. A file truncated and written again fails the same check before its next byte
is sent.
"""

from __future__ import annotations

import os
from typing import Any

from remote.agent.context import BoxContext
from remote.agent.log_file import open_log, read_on, resolve_log, tail_start
from remote.agent.outbox import Outbox
from remote.protocol import MAX_DATA, Cursor, encode_data

QUIET_S = 0.02
"""Two writes within a clock tick (up to 10 ms) have the same time, so a file is examined once more after this long."""
_DELETED = (0, 0)
"""Identity of a file that is gone: the next one at its path is another, even with its inode."""


class Tail:
    """One followed log."""

    __slots__ = (
        "_box", "_checked", "_cursor", "_descriptor", "_file", "_granted", "_path", "_seen", "_since", "_tail_bytes",
        "sent", "subscription",
    )  # fmt: skip

    def __init__(self, subscription: int, box: BoxContext, params: dict[str, Any], credit: int) -> None:
        given = params.get("cursor")
        tail_bytes = params.get("tail_bytes")
        path = str(params.get("path", ""))
        self.subscription = subscription
        self._box = box
        self._path = resolve_log(box.root, path)
        self._granted = credit  # written by one thread, ``sent`` by another: neither needs a lock
        self.sent = 0
        """Bytes sent."""
        self._cursor = Cursor.from_json(given) if given else Cursor(path)
        self._tail_bytes = None if given or tail_bytes is None else max(0, int(tail_bytes))
        self._descriptor: int | None = None
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that is followed; None before the first."""
        self._seen = (-1, -1)
        """Size and time of change at the last look …"""
        self._since = 0.0
        """… when they were first seen …"""
        self._checked = False
        """… and whether the content before the cursor was examined since."""

    @property
    def path(self) -> str:
        """Absolute path of the log."""
        return self._path

    @property
    def is_open(self) -> bool:
        return self._descriptor is not None

    def grant(self, count: int) -> None:
        """Add credit."""
        self._granted += count

    def close(self) -> None:
        """Close the descriptor; the next step opens it again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def forget(self) -> None:
        """Close a descriptor that fails (its mount was away); the next file is known by its content only."""
        if self._descriptor is not None:
            self.close()
            self._file = None

    def step(self, outbox: Outbox) -> bool:
        """Send at most one frame; returns whether to step again at once.

        Raises RemoteError when the file cannot be followed.
        """
        credit = self._granted - self.sent
        if credit <= 0:
            return False
        try:
            there = os.stat(self._path)
        except (FileNotFoundError, NotADirectoryError):  # not created, renamed, or its mount is away
            if self._descriptor is None:
                return False
            there = None
        moved = there is None or (there.st_dev, there.st_ino) != self._file
        if there and not moved and self._checked and self._seen == (there.st_size, there.st_mtime_ns):
            return False
        if self._descriptor is None:
            self._descriptor = open_log(self._path, self._box.root, self._box.settings.follow_links)
            there = os.fstat(self._descriptor)
            previous, self._file, moved = self._file, (there.st_dev, there.st_ino), False
            self._checked = False
            if previous and previous[1] != there.st_ino:  # a remount may change the device
                return self._rotate(outbox)
        facts = os.fstat(self._descriptor) if there is None or moved else there
        return self._read(outbox, facts, credit) or (moved and self._leave(there, facts))

    def _read(self, outbox: Outbox, facts: os.stat_result, credit: int) -> bool:
        """Send what follows the cursor, or that the file was truncated; returns whether there is more."""
        assert self._descriptor is not None
        if self._tail_bytes is not None and facts.st_size:
            start = tail_start(self._descriptor, facts.st_size, self._tail_bytes)
            self._cursor, self._tail_bytes = Cursor(self._cursor.path, start), None
        now, state = self._box.clock.monotonic(), (facts.st_size, facts.st_mtime_ns)
        if state != self._seen:
            self._seen, self._since, self._checked = state, now, False
        cursor = self._cursor
        rest = facts.st_size - cursor.offset
        if rest == 0 and (self._checked or now - self._since < QUIET_S):
            return False
        found = read_on(self._descriptor, cursor, min(MAX_DATA, credit, rest)) if rest >= 0 else None
        if found is None:
            return self._rotate(outbox)
        data, after = found
        if not data:
            self._checked = True
            return False
        head = (after.head_length, after.head_sha256)
        file = (after.device, after.inode)
        outbox.put_encoded(
            encode_data(
                self.subscription,
                cursor.offset,
                data,
                head if head != (cursor.head_length, cursor.head_sha256) else None,
                after.tail_sha256,
                file if file != (cursor.device, cursor.inode) else None,
            )
        )
        self._cursor = after
        self.sent += len(data)
        return after.offset < facts.st_size  # what a fast writer adds meanwhile waits for the next poll: fewer frames

    def _rotate(self, outbox: Outbox) -> bool:
        """Begin the opened file at its start, and report it unless nothing was read of another."""
        if self._cursor.offset:
            self._cursor = Cursor(self._cursor.path)
            outbox.put({"type": "rotated", "id": self.subscription, "cursor": self._cursor.to_json()})
        return True

    def _leave(self, there: os.stat_result | None, facts: os.stat_result) -> bool:
        """The file, read to its end, is no longer at its path: close it once it has a successor or is deleted."""
        if there is not None:
            self.close()
        elif facts.st_nlink == 0:
            self.close()
            self._file = _DELETED
        return there is not None
