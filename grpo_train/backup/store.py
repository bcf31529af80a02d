"""What a backup needs of a store. Two implementations: :mod:`~grpo_train.backup.s3`, :mod:`~grpo_train.backup.folder`.

Keys are relative to the destination's prefix, with ``/`` between their parts. An implementation repeats what can be
repeated (back-off with jitter, a deadline for each request) and raises :class:`StoreError` for what cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from grpo_train.run_dir.errors import UserError

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
class FilePart:
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

    def write(self, key: str, piece: FilePart, on_bytes: OnBytes | None = None) -> None:
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
