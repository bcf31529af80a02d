"""What a backup needs of a store. Two implementations: :mod:`~grpo_train.backup.s3`, :mod:`~grpo_train.backup.folder`.

Keys are relative to the destination's prefix, with ``/`` between their parts. An implementation repeats what can be
repeated (back-off with jitter, a deadline for each request) and raises :class:`StoreError` for what cannot.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.safe_json import Unreadable, open_regular

# keys of objects, checked before a request or a path is made from them -------------------------------------

MAX_KEY_BYTES = 1_024
"""The limit of S3."""
MAX_NAME_BYTES = 255
"""The limit of file systems."""

_PARTIAL = re.compile(r"\.[0-9a-f]{16}\.partial")
_RESERVED = re.compile(rf"(?:^|/){_PARTIAL.pattern}(?:/|\Z)")
_DOTS = re.compile(r"(?:^|/)\.{0,2}(?:/|\Z)")
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Unicode's categories Cc and Cs."""


def check_key(key: str) -> str:
    """The key itself. Raises StoreError (``bad_name``) for a key that leads out of a store or that one cannot hold."""
    if problem := _problem_of(key):
        raise StoreError(f"invalid name {key!r}: {problem}", code="bad_name")
    return key


def is_key(key: str) -> bool:
    """Whether a file name in a store can be an object's; other files are not ours."""
    return not _problem_of(key)


def check_prefix(prefix: str) -> str:
    """The start of a key, or "". Raises StoreError (``bad_name``)."""
    if prefix:
        check_key(prefix.removesuffix("/"))
    return prefix


def partial_name() -> str:
    """New hidden name for a file that is being written."""
    return f".{secrets.token_hex(8)}.partial"


def is_partial(name: str) -> bool:
    """Whether a file name is a :func:`partial_name`."""
    return bool(_PARTIAL.fullmatch(name))


def _problem_of(key: str) -> str:
    """Three patterns and two lengths: every key of a listing and of a manifest is checked."""
    if key.startswith("/"):
        return "it is absolute"
    if _DOTS.search(key):
        return "'.', '..' and empty names are not allowed between slashes"
    if _CONTROL.search(key):
        return "control characters and invalid UTF-8 are not allowed"
    length = len(key.encode())
    if length > MAX_KEY_BYTES or (
        length > MAX_NAME_BYTES and any(len(name.encode()) > MAX_NAME_BYTES for name in key.split("/"))
    ):
        return f"the limits are {MAX_KEY_BYTES} bytes, and {MAX_NAME_BYTES} between slashes"
    if _RESERVED.search(key):
        return "the name is reserved for files that are being written"
    return ""


# bytes on both ends of a transfer: parts of local files, objects that are read back, a limit of their rate -

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


def read_piece(piece: FilePiece, size: int = CHUNK) -> Iterator[bytes]:
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
    except OSError as error:  # a failing disk; another account's
        raise _changed(piece, f"cannot read it: {error.strerror or error}") from error
    if left:
        raise _changed(piece, f"it has {left} bytes less than expected")
    if digest.hexdigest() != piece.sha256:
        raise _changed(piece, "its bytes differ from their SHA-256")
    if last:
        yield last


def _changed(piece: FilePiece, problem: str) -> StoreError:
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


OnBytes = Callable[[int], None]
"""Called with the number of bytes that moved since the last call."""


class StoreError(UserError):
    """A store that cannot be used, or an object in it. ``code`` says which:

    ``refused`` (key, secret, token or rights), ``no_bucket``, ``wrong_region``, ``bad_name``, ``clock`` (this machine's
    clock differs too much from the store's), ``unreachable`` (given up after repeats), ``full``, ``missing`` (no such
    object), ``damaged`` (an object differs from what it should be), ``changed`` (the local file changed while it was
    read, or differs from its expected hash).
    """

    code = "unreachable"


@dataclass(frozen=True)
class StoredObject:
    """One object of a listing."""

    key: str
    size: int
    """Bytes."""
    modified: float
    """Seconds since the epoch, by the store's clock."""


@dataclass(frozen=True)
class FilePiece:
    """Bytes of a local file that become one object: ``size`` bytes from ``start``."""

    path: Path
    start: int
    size: int
    sha256: str
    """Hex, of these bytes; the upload fails with ``changed`` when what is read differs."""


@dataclass(frozen=True)
class Trust:
    """What a destination does, found out by a trial (:mod:`~grpo_train.backup.trial`)."""

    store_id: str
    """Random ID in the store's ``grpo-store.json``."""
    computes_sha256: bool
    """Refuses a wrong SHA-256 and reports a right one that it was not given: its HEAD is a proof."""
    refuses_wrong_md5: bool
    same_disk: bool
    """A marker written through the store appeared under the root, or the other way round."""


class ObjectStore(Protocol):
    """Objects under a prefix. Every method raises :class:`StoreError`."""

    url: str
    """For people: ``s3://bucket/prefix`` or a path."""

    def entries(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose key starts with ``prefix``, in the order of keys."""

    def folders(self, prefix: str) -> list[str]:
        """Names between ``prefix``, which ends with ``/``, and the next ``/``; sorted."""

    def head(self, key: str) -> StoredObject | None:
        """An object's entry; None where there is none."""

    def read(self, key: str, start: int = 0) -> Iterator[bytes | memoryview]:
        """The bytes of an object from ``start`` on, in chunks of at most 8 MiB; one ends with the next. ``missing``."""

    def read_small(self, key: str, limit: int) -> bytes:
        """A whole object. ``missing``; ``damaged`` over ``limit`` bytes."""

    def write(self, key: str, piece: FilePiece, on_bytes: OnBytes | None = None) -> None:
        """Store a piece under a key, resuming an upload that was cut. ``changed``, ``full``.

        The object appears whole or not at all.
        """

    def write_small(self, key: str, data: bytes) -> None:
        """Store a small object. It appears whole or not at all."""

    def prove(self, key: str, size: int, sha256: str, on_bytes: OnBytes | None = None) -> bool:
        """Prove that an object holds the bytes it should: by the checksum that the store computed where it can be
        trusted, otherwise by :meth:`read_back`; returns whether it was read. ``missing``, ``damaged``."""

    def read_back(self, key: str, size: int, sha256: str, on_bytes: OnBytes | None = None) -> None:
        """Read an object and hash it. ``missing``, ``damaged``."""

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; missing ones are ignored."""

    def abort_stale_uploads(self, prefix: str, older_than_s: float) -> int:
        """End uploads that were started and never finished; returns how many."""

    def now(self) -> float:
        """Seconds since the epoch, by the store's clock."""
