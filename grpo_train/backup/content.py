"""The bytes on both ends of a transfer: pieces of local files, objects that are read back, a limit of their rate."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator

from grpo_train.backup.store import FilePart, OnBytes, StoreError
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.safe_json import Unreadable, open_regular

CHUNK = 4 << 20
"""Bytes read at a time."""


class RateLimit:
    """Upper bound of the bytes per second that all threads together move."""

    def __init__(self, bytes_per_s: float, clock: Clock = CLOCK) -> None:
        self.bytes_per_s = bytes_per_s
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = clock.monotonic()

    def take(self, size: int) -> None:
        """Wait until ``size`` more bytes may move."""
        with self._lock:
            start = max(self._free_at, self._clock.monotonic())
            self._free_at = start + size / self.bytes_per_s
        self._clock.sleep(start - self._clock.monotonic())


def read_piece(piece: FilePart, size: int = CHUNK) -> Iterator[bytes]:
    """The bytes of a piece, in chunks of ``size`` bytes.

    Raises StoreError (``changed``) in place of the last one if they differ from the piece's SHA-256.
    """
    digest, left, last = hashlib.sha256(), piece.size, b""
    try:
        with open_regular(piece.path) as file:
            file.seek(piece.start)
            while left and (chunk := file.read(min(size, left))):
                left -= len(chunk)
                digest.update(chunk)
                if last:
                    yield last
                last = chunk
    except FileNotFoundError:
        raise _changed(piece, "it was removed while it was backed up") from None
    except Unreadable as error:
        raise _changed(piece, str(error)) from None
    except OSError as error:
        raise _changed(piece, f"cannot read it: {error.strerror or error}") from error
    if left:
        raise _changed(piece, f"it has {left} bytes less than expected")
    if digest.hexdigest() != piece.sha256:
        raise _changed(piece, "its bytes differ from their SHA-256")
    if last:
        yield last


def _changed(piece: FilePart, problem: str) -> StoreError:
    return StoreError(f"{piece.path}: {problem}", code="changed")


def check_content(
    chunks: Iterable[bytes | memoryview], where: str, size: int, sha256: str, on_bytes: OnBytes | None = None
) -> None:
    """Hash an object's bytes. Raises StoreError (``damaged``) if they are not the expected ones."""
    digest, count = hashlib.sha256(), 0
    for chunk in chunks:
        count += len(chunk)
        if count > size:
            break
        digest.update(chunk)
        if on_bytes:
            on_bytes(len(chunk))
    if count != size:
        raise StoreError(f"{where}: {'more' if count > size else count} bytes instead of {size}", code="damaged")
    if digest.hexdigest() != sha256:
        raise StoreError(f"{where}: its bytes differ from their SHA-256", code="damaged")
