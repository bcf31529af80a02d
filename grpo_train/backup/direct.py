"""Large files past the page cache of a local disk: their bytes are wanted on the disk, and the memory by training.

To find pages for buffered bytes and to copy them takes more processor time than to hash them, and pushes out what other
programs read. Direct transfers need memory, offsets and lengths in whole blocks; so the end of a file, small files, and
those on a network or in memory go through the page cache.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections.abc import Iterator

BLOCK = 4_096
"""Bytes; a multiple of the blocks of a disk."""
BUFFER = 4 << 20
"""Bytes moved at a time."""
LEAST = 16 << 20
"""Bytes of a file from which on it is worth a buffer of its own."""


class DirectFile:
    """A file that is written in order, from its start; a context that closes it. Raises OSError."""

    def __init__(self, descriptor: int, size: int) -> None:
        """``descriptor``: of an empty file, open for writing; ``size``: the bytes that are expected."""
        self._descriptor = descriptor
        self._direct = _set_direct(descriptor, size >= LEAST)
        self._buffer = mmap.mmap(-1, BUFFER) if self._direct else None
        self._filled = 0
        self._written = 0

    def __enter__(self) -> DirectFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def tell(self) -> int:
        """Bytes so far."""
        return self._written + self._filled

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes."""
        left = memoryview(data)
        if self._buffer is not None and not self._filled and _is_aligned(left):
            whole = len(left) - len(left) % BLOCK
            self._write(left[:whole])
            left = left[whole:]
        while self._buffer is not None and left:
            part = left[: BUFFER - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
            left = left[len(part) :]
            if self._filled == BUFFER:
                self._empty()
        self._write(left)

    def rewind(self, size: int) -> None:
        """Drop what follows the first ``size`` bytes."""
        if size >= self._written:
            self._filled = size - self._written
            return
        self._end_direct()
        self._buffer, self._filled, self._written = None, 0, size
        os.ftruncate(self._descriptor, size)
        os.lseek(self._descriptor, size, os.SEEK_SET)

    def flush(self) -> None:
        """Bring everything to the disk; nothing may be written after it."""
        self._empty()
        os.fsync(self._descriptor)

    def _empty(self) -> None:
        """Write the buffer, from its start again."""
        if self._buffer is None:
            return
        with memoryview(self._buffer) as view:
            whole = self._filled - self._filled % BLOCK
            self._write(view[:whole])
            if whole < self._filled:
                self._end_direct()
                self._write(view[whole : self._filled])
        self._filled = 0

    def _write(self, left: memoryview) -> None:
        while left:
            try:
                size = os.write(self._descriptor, left)
            except OSError as error:
                if error.errno != errno.EINVAL or not self._direct:
                    raise
                self._end_direct()  # a disk with larger blocks
                continue
            if size % BLOCK:
                self._end_direct()
            self._written += size
            left = left[size:]

    def _end_direct(self) -> None:
        if self._direct:
            _set_direct(self._descriptor, False)
            self._direct = False


def _is_aligned(data: memoryview) -> bool:
    """Whether bytes can be written from where they are."""
    if len(data) < BLOCK or data.readonly:
        return False
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) % BLOCK == 0


def read_from_disk(descriptor: int) -> Iterator[memoryview]:
    """The bytes of a file as the disk has them, not as this machine remembers them. A block ends with the next one.

    Where they cannot come past its memory, it is asked to forget them first. Raises OSError.
    """
    size = os.fstat(descriptor).st_size
    direct = _set_direct(descriptor, size >= LEAST)
    if not direct:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    view = memoryview(mmap.mmap(-1, min(BUFFER, max(BLOCK, size))))
    while True:
        try:
            size = os.readv(descriptor, [view])
        except OSError as error:
            if error.errno != errno.EINVAL or not direct:
                raise
            direct = _set_direct(descriptor, False)
            continue
        if not size:
            return
        if size % BLOCK and direct:  # the end, unless the file grows
            direct = _set_direct(descriptor, False)
        yield view[:size]


def _set_direct(descriptor: int, direct: bool) -> bool:
    """Turn direct transfers on or off; returns whether they are on. Never on without a disk of this machine."""
    flag = getattr(os, "O_DIRECT", 0)
    if direct and not (flag and os.major(os.fstat(descriptor).st_dev)):
        return False
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | flag if direct else flags & ~flag)
    except OSError:  # FUSE, and tmpfs of older kernels
        if direct:
            return False
        raise
    return direct
