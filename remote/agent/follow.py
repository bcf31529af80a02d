"""Log tails: each byte from a cursor on, once, within the client's credit; a replaced file is reported as rotated.

Files are polled, because NFS has no change notification. A file is read only while its client has credit, so nothing
is buffered for a slow client.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
from pathlib import Path
from typing import Any

from remote.agent.outbox import Outbox
from remote.protocol import HEAD_BYTES, MAX_DATA, Cursor, RemoteError, encode_data

FASTEST_S = 0.02
SLOWEST_S = 0.25
_TRANSIENT = frozenset({errno.EIO, errno.ENOENT, errno.ESTALE, errno.EAGAIN, errno.ENOTCONN, errno.ETIMEDOUT})
"""Errors of a network mount that is temporarily away."""
TAIL_SEARCH = 1 << 20
"""A tail starts at the start of a line if a line starts within this many bytes."""


def resolve_log(root: Path, path: str) -> Path:
    """The file at a log's path. Raises RemoteError ``bad_path`` unless it is a plain path inside the root."""
    parts = path.split("/")
    if not path or "\0" in path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise RemoteError(
            "bad_path", f"'{path}' is not a path inside the root {root}", "use a path relative to the root"
        )
    return root.joinpath(*parts)


class Tail:
    """One followed file."""

    def __init__(self, subscription: int, file: Path, params: dict[str, Any], credit: int) -> None:
        given = params.get("cursor")
        tail_bytes = params.get("tail_bytes")
        self.subscription = subscription
        self.file = file
        self._credit = credit
        self._credit_lock = threading.Lock()
        self._cursor = Cursor.from_json(given) if given else Cursor(str(params["path"]))
        self._tail_bytes = None if given or tail_bytes is None else max(0, int(tail_bytes))
        self._inode: tuple[int, int] | None = None

    def step(self, outbox: Outbox) -> bool:
        """Send at most one frame; returns whether one was sent. Raises RemoteError when the file cannot be followed."""
        if self._credit <= 0:
            return False
        try:
            facts = self.file.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False  # does not exist yet, or its NFS mount is away: the cursor stays valid
        if not stat.S_ISREG(facts.st_mode):
            raise RemoteError("bad_path", f"{self.file} is not a regular file")
        same = self._inode == (facts.st_dev, facts.st_ino)
        if same and facts.st_size == self._cursor.offset:
            return False
        descriptor = os.open(self.file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            return self._read(descriptor, outbox)
        finally:
            os.close(descriptor)

    def _read(self, descriptor: int, outbox: Outbox) -> bool:
        facts = os.fstat(descriptor)
        size, cursor = facts.st_size, self._cursor
        self._inode = (facts.st_dev, facts.st_ino)
        if not continues(descriptor, size, cursor):
            self._cursor, self._tail_bytes = Cursor(cursor.path), None
            outbox.put({"type": "rotated", "id": self.subscription, "cursor": self._cursor.to_json()})
            return True
        if self._tail_bytes is not None:
            if size == 0:
                return False
            self._cursor = cursor = Cursor(cursor.path, _line_start(descriptor, size, self._tail_bytes))
            self._tail_bytes = None
        wanted = min(MAX_DATA, self._credit, size - cursor.offset)
        data = os.pread(descriptor, wanted, cursor.offset) if wanted > 0 else b""
        if not data:
            return False
        offset = cursor.offset + len(data)
        head = _head(descriptor, cursor, offset)
        new_head = head if head != (cursor.head_length, cursor.head_sha256) else None
        outbox.put_encoded(encode_data(self.subscription, cursor.offset, data, new_head))
        self._cursor = Cursor(cursor.path, offset, *head)
        self.grant(-len(data))
        return True

    def grant(self, count: int) -> None:
        """Add credit; negative once used. Any thread."""
        with self._credit_lock:
            self._credit += count


def continues(descriptor: int, size: int, cursor: Cursor) -> bool:
    """Whether an open file is the cursor's: at least as long as its offset, with the same first bytes."""
    if size < cursor.offset:
        return False
    head = os.pread(descriptor, cursor.head_length, 0) if cursor.head_length else b""
    return not cursor.head_length or hashlib.sha256(head).hexdigest() == cursor.head_sha256


def _head(descriptor: int, cursor: Cursor, offset: int) -> tuple[int, str]:
    """Length and SHA-256 of the first bytes, for a cursor at ``offset``."""
    length = min(HEAD_BYTES, offset)
    if length == cursor.head_length:
        return cursor.head_length, cursor.head_sha256
    head = os.pread(descriptor, length, 0)
    return len(head), hashlib.sha256(head).hexdigest()


def _line_start(descriptor: int, size: int, tail_bytes: int) -> int:
    """First start of a line within the last ``tail_bytes``; inside a longer line, the exact position."""
    start = max(0, size - tail_bytes)
    if start == 0:
        return 0
    window = os.pread(descriptor, min(TAIL_SEARCH, size - start + 1), start - 1)
    newline = window.find(b"\n")
    return start + newline if newline >= 0 else start


class Follower:
    """All tails of this agent, polled by one thread."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lock = threading.Lock()
        self._tails: dict[int, Tail] = {}
        self._wake = threading.Event()
        threading.Thread(target=self._poll, name="follower", daemon=True).start()

    def add(self, tail: Tail) -> None:
        with self._lock:
            self._tails[tail.subscription] = tail
        self._wake.set()

    def remove(self, subscription: int) -> None:
        with self._lock:
            self._tails.pop(subscription, None)

    def credit(self, subscription: int, count: int) -> None:
        """Allow ``count`` more bytes to be sent."""
        with self._lock:
            if tail := self._tails.get(subscription):
                tail.grant(max(0, count))
        self._wake.set()

    def _poll(self) -> None:
        pause = FASTEST_S
        while not self._outbox.broken.is_set():
            with self._lock:
                tails = list(self._tails.values())
            busy = False
            for tail in tails:
                busy |= self._step(tail)
            pause = FASTEST_S if busy else min(SLOWEST_S, pause * 1.5)
            if not busy and self._wake.wait(pause if tails else None):
                self._wake.clear()

    def _step(self, tail: Tail) -> bool:
        """One step, without the lock: a hanging disk must not block the thread that answers pings."""
        try:
            return tail.step(self._outbox)
        except OSError as error:
            if error.errno in _TRANSIENT:
                return False
            refusal = RemoteError("io", f"{tail.file}: {error.strerror or error}")
        except RemoteError as error:
            refusal = error
        self.remove(tail.subscription)
        self._outbox.put({"type": "closed", "id": tail.subscription, "error": refusal.to_json()})
        return False
