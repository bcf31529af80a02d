"""Followed logs: which files may be opened, each byte from a cursor on, once; all of them polled by one thread.

A log must be a regular file inside the root. The opened file is checked, never its path, so that a link that is
swapped at the same time leads nowhere. Settings ``follow_links`` allows links out of the root.

While a subscription stands, the opened file is kept: renamed, it is read to its end before its successor is begun, and
another inode is a rotation whatever its first bytes are. A cursor of an earlier connection fits any file with its first
bytes and its last ones before the offset. A file truncated and written again fails the same check before its next byte
is sent.

Polling works on every file system (NFS has no change notification) and is cheap: an unchanged file costs one ``stat``.
A file is read only while its client has credit, so nothing is buffered for a slow client.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import Clock
from remote.agent.box import BoxContext
from remote.agent.outbox import Outbox
from remote.protocol import HEAD_BYTES, MAX_DATA, Cursor, RemoteError, encode_data

TAIL_SEARCH = 1 << 20
"""A tail starts at the start of a line if a line starts within this many bytes."""
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC


def resolve_log(root: Path, path: str) -> str:
    """The file at a log's path. Raises RemoteError ``bad_path`` unless it is a plain path inside the root."""
    parts = path.split("/")
    if not path or "\0" in path or path.startswith("/") or any(part in ("", ".", "..") for part in parts):
        raise RemoteError(
            "bad_path", f"'{path}' is not a path inside the root {root}", "use a path relative to the root"
        )
    return os.path.join(root, *parts)


def open_log(path: str, root: Path, follow_links: bool) -> int:
    """A descriptor of a log for reading.

    Raises RemoteError ``bad_path`` for anything but a regular file on a disk, and for a link out of the root unless
    ``follow_links``.
    """
    # O_PATH opens nothing: a pipe or a device does not notice, and what is read below is the file examined here
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC) if hasattr(os, "O_PATH") else os.open(path, _READ | os.O_NOFOLLOW)
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode) or facts.st_dev in _kernel_devices():
            raise RemoteError("bad_path", f"{path} is not a regular file")
        if not hasattr(os, "O_PATH"):  # macOS, for the local box
            return os.dup(handle)
        opened, base = os.readlink(f"/proc/self/fd/{handle}"), os.path.realpath(root)
        if not follow_links and not opened.startswith(base.rstrip("/") + "/"):
            message = f"{path} is a link to {opened}, outside the root {root}"
            raise RemoteError("bad_path", message, "set follow_links: true in boxes.yaml to follow it")
        return os.open(f"/proc/self/fd/{handle}", _READ)
    finally:
        os.close(handle)


def _kernel_devices() -> set[int]:
    """Devices of /proc and /sys, whose files look regular and hold environments and keys."""
    return {os.stat(folder).st_dev for folder in ("/proc", "/sys") if os.path.isdir(folder)}


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_on(descriptor: int, cursor: Cursor, count: int) -> tuple[bytes, Cursor] | None:
    """At most ``count`` bytes after a cursor, and the cursor after them; None if the file is not the cursor's.

    It is the cursor's if its first bytes and the last ones before the offset are. What is unknown is not compared.
    """
    data = os.pread(descriptor, count, cursor.offset)
    # examined after the data was read: a file that is truncated and written again meanwhile cannot be mixed with it
    length = min(HEAD_BYTES, cursor.offset)
    before = os.pread(descriptor, length, cursor.offset - length)
    if len(before) < length or (cursor.tail_sha256 and sha256(before) != cursor.tail_sha256):
        return None
    if cursor.head_length and sha256(os.pread(descriptor, cursor.head_length, 0)) != cursor.head_sha256:
        return None
    offset = cursor.offset + len(data)
    head = cursor.head_length, cursor.head_sha256
    if head[0] != min(HEAD_BYTES, offset):
        first = os.pread(descriptor, HEAD_BYTES, 0)[:offset]
        head = len(first), sha256(first)
    facts = os.fstat(descriptor)
    tail = sha256((before + data)[-HEAD_BYTES:])
    return data, Cursor(cursor.path, offset, *head, tail, facts.st_dev, facts.st_ino)


def tail_start(descriptor: int, size: int, tail_bytes: int) -> int:
    """First start of a line within the last ``tail_bytes``; inside a line that is longer, the exact position."""
    start = max(0, size - tail_bytes)
    if start == 0:
        return 0
    window = os.pread(descriptor, min(TAIL_SEARCH, size - start + 1), start - 1)
    line = start + window.find(b"\n")
    return line if start <= line < size else start


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


POLL_S = 0.08
"""Pause between two polls …"""
SLOWEST_S = 2.0
"""… and its maximum, for …"""
PAUSE_RATIO = 15.0
"""… this multiple of a poll's CPU time: polling takes at most 6 % of a core, with any number of logs."""
MOST_OPEN = 16_384
_TRANSIENT = frozenset(
    {errno.EIO, errno.ENOENT, errno.ESTALE, errno.EAGAIN, errno.ENOTCONN, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE}
)
"""Errors of a network mount that is temporarily away, and of a process without a free descriptor."""


class Follower:
    """The tails of one agent."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox, self._clock = outbox, clock
        self._lock = threading.Lock()
        self._tails: dict[int, Tail] = {}
        self._ready: list[Tail] = []
        """Tails to step before the next poll."""
        self._ended: list[Tail] = []
        """Tails to close, by the thread that uses their descriptors."""
        self._open: dict[Tail, None] = {}
        """Tails with an open file, the last read last."""
        self._most_open = _most_open()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="follower", daemon=True)
        self._thread.start()

    def add(self, tail: Tail) -> None:
        with self._lock:
            self._tails[tail.subscription] = tail
            self._ready.append(tail)
        self._wake.set()

    def remove(self, subscription: int) -> None:
        with self._lock:
            if tail := self._tails.pop(subscription, None):
                self._ended.append(tail)
        self._wake.set()

    def credit(self, subscription: int, count: int) -> None:
        """Allow ``count`` more bytes to be sent."""
        with self._lock:
            if tail := self._tails.get(subscription):
                tail.grant(max(0, count))
                self._ready.append(tail)
        self._wake.set()

    def _poll(self) -> None:
        busy: list[Tail] = []
        next_poll = 0.0
        while not self._outbox.broken.is_set():
            if not busy:
                left = max(0.0, next_poll - self._clock.monotonic()) if self._tails else None
                self._clock.wait(self._wake, left)
            self._wake.clear()
            polled = self._clock.monotonic() >= next_poll
            with self._lock:
                tails = list(self._tails.values()) if polled else list(dict.fromkeys(self._ready + busy))
                ended, self._ready, self._ended = self._ended, [], []
            for tail in ended:
                tail.close()
                self._open.pop(tail, None)
            began = time.thread_time()
            busy = [tail for tail in tails if self._step(tail)]
            if polled:
                pause = PAUSE_RATIO * (time.thread_time() - began)
                next_poll = self._clock.monotonic() + min(SLOWEST_S, max(POLL_S, pause))

    def _step(self, tail: Tail) -> bool:
        """One step, without the lock: a hanging disk must not block the thread that answers pings."""
        if self._tails.get(tail.subscription) is not tail:
            return False
        sent = tail.sent
        try:
            again = tail.step(self._outbox)
        except OSError as error:
            if error.errno in _TRANSIENT:
                tail.forget()
                self._open.pop(tail, None)
                return False
            refusal = RemoteError("io", f"{tail.path}: {error.strerror or error}")
        except RemoteError as error:
            refusal = error
        else:
            if tail.sent != sent or tail.is_open is not (tail in self._open):
                self._keep(tail)
            return again
        self.remove(tail.subscription)
        self._outbox.put({"type": "closed", "id": tail.subscription, "error": refusal.to_json()})
        return False

    def _keep(self, tail: Tail) -> None:
        """Record whether a tail's file is open; above the limit the one read longest ago is closed."""
        self._open.pop(tail, None)
        if tail.is_open:
            self._open[tail] = None
            if len(self._open) > self._most_open:
                oldest = next(iter(self._open))
                oldest.close()
                del self._open[oldest]


def _most_open() -> int:
    """Half of the descriptors that this process may have, less the one that is open while the oldest is closed."""
    import resource  # POSIX only

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(soft // 2, MOST_OPEN) - 1 if soft != resource.RLIM_INFINITY else MOST_OPEN - 1
