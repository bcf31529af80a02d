"""Files of logs: which may be opened, and whether one is the file of a cursor.

A log must be a regular file inside the root. The opened file is checked, never its path, so that a link that is
swapped at the same time leads nowhere. Settings ``follow_links`` allows links out of the root.
"""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from remote.protocol import HEAD_BYTES, Cursor, RemoteError

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
