"""Opening a destination by its name: the store, and what it can be trusted with."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup import trial
from grpo_train.backup.access import LAMBDA_FILE, find_access
from grpo_train.backup.backup_yaml import (
    EXAMPLE,
    Bucket,
    DestinationError,
    Folder,
    default_path,
    read_destinations,
)
from grpo_train.backup.folder import FolderStore
from grpo_train.backup.s3 import S3Store
from grpo_train.backup.s3_requests import OnWait
from grpo_train.backup.snapshot import KINDS
from grpo_train.backup.store import ObjectStore, RateLimit, Trust
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import did_you_mean

BESIDE_TRAINING = 25_000_000
"""Bytes per second and processor beside training: less than a tenth of the processors' time (docs/performance.md)."""
DIRECTORY_BESIDE_TRAINING = 100_000_000
"""The most to a directory, however many processors: the work of its disk slows the steps down, too."""


@dataclass(frozen=True)
class Destination:
    """An opened destination."""

    name: str
    store: ObjectStore
    trust: Trust
    limit: int | None
    """Bytes per second, already in force; None = unlimited."""


def open_destination(
    name: str | None,
    root: Path,
    *,
    write: bool = True,
    limit: int | None = None,
    is_training: bool = False,
    transfers: int = 4,
    on_wait: OnWait | None = None,
    clock: Clock = CLOCK,
) -> Destination:
    """Open a destination of ``backup.yaml``; None opens the first, or the bucket of ``~/.lambda_s3.env``.

    With ``write``, the rights to list, write, read and delete are tried out, and the destination's trust is found out.
    Without, an unknown destination is trusted with nothing. ``limit`` (bytes per second) replaces that of the file;
    where neither is set, ``is_training`` keeps to what a run that trains on this machine does not notice. ``transfers``
    is the number of parts of files that are uploaded at a time. ``on_wait`` is called before a request is repeated.

    Raises DestinationError, AccessError, and StoreError when the store cannot be used.
    """
    described = find_destination(name)
    if write and isinstance(described, Folder):
        _check_outside(described, root)
    limit = limit or described.limit or (rate_beside_training(described) if is_training else None)
    store = _open(described, RateLimit(limit, clock) if limit else None, transfers, on_wait, clock)
    trust = trial.trust(store, root) if write else trial.known_trust(store)
    store.trust_checksums(trust.computes_sha256)
    return Destination(described.name, store, trust, limit)


def rate_beside_training(described: Folder | Bucket) -> int:
    """Bytes per second that do not slow down a run on this machine."""
    rate = BESIDE_TRAINING * len(os.sched_getaffinity(0))
    return min(rate, DIRECTORY_BESIDE_TRAINING) if isinstance(described, Folder) else rate


def _check_outside(described: Folder, root: Path) -> None:
    """Raise DestinationError for a directory whose content would be taken for runs of the root."""
    folder, real = os.path.realpath(described.folder), os.path.realpath(root)
    if folder == real or any(f"{folder}/".startswith(f"{real}/{kind}/") for kind in KINDS):
        raise DestinationError(
            f"{described.name}: the directory {described.folder} is among the runs of the root {root}; "
            "use another one in backup.yaml"
        )


def list_destinations() -> list[Folder | Bucket]:
    """The described destinations, the default first; without a file, the bucket of ``~/.lambda_s3.env``.

    Raises DestinationError.
    """
    known: list[Folder | Bucket] = list(read_destinations(default_path()))
    return known or ([Bucket(name="s3")] if LAMBDA_FILE.expanduser().exists() else [])


def find_destination(name: str | None) -> Folder | Bucket:
    """The description of a destination. Raises DestinationError."""
    path, known = default_path(), list_destinations()
    if name is None and known:
        return known[0]
    if name is None or not known:
        raise DestinationError(f"{path}: no destination for backups is described; {EXAMPLE}", code="no_destination")
    for described in known:
        if described.name == name:
            return described
    hint = did_you_mean(name, [described.name for described in known])
    raise DestinationError(f"no destination named '{name}' in {path}; {hint}", code="no_destination")


def _open(
    described: Folder | Bucket, limit: RateLimit | None, transfers: int, on_wait: OnWait | None, clock: Clock
) -> trial.Tried:
    if isinstance(described, Folder):
        return FolderStore(Path(described.folder), limit, clock)
    return S3Store(
        find_access(described.credentials),
        bucket=described.bucket,
        prefix=described.prefix,
        endpoint=described.endpoint,
        region=described.region,
        ca_file=described.ca_file,
        limit=limit,
        transfers=transfers,
        on_wait=on_wait,
        clock=clock,
    )
