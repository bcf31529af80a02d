"""Which snapshots a directory continues: its own, or none, because another copy of the run has trained on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from grpo_train.backup.layout import Home
from grpo_train.backup.logs import extends
from grpo_train.backup.record import BackupRecord, new_identity
from grpo_train.backup.snapshot import Snapshot, StoredFile
from grpo_train.backup.snapshots import StoredRun, StoredSnapshot, homes
from grpo_train.backup.store import ObjectStore
from grpo_train.run_dir.files import stat_of
from grpo_train.run_dir.safe_json import Unreadable, open_regular


@dataclass(frozen=True)
class Lineage:
    """Where the next snapshot of a directory belongs."""

    stored: StoredRun
    previous: StoredSnapshot | None
    """The snapshot that it carries forward."""
    ahead: int = 0
    """Number of a newer snapshot by another copy, while this one has not changed since ``previous``; 0 = none."""


def find_lineage(store: ObjectStore, store_id: str, home: Home, folder: Path, record: BackupRecord) -> Lineage:
    """Compare a directory with the newest snapshot of its identity. May give ``record`` a new identity.

    A copy that was resumed on another box and backed up there has bytes that this one lacks. Once both have gone on,
    they are two runs: the one that comes second gets an identity that names the first as its parent. Raises StoreError,
    OSError.
    """
    stored = StoredRun(store, home)
    newest = stored.newest_readable()
    if newest is None and home.twin:
        newest = StoredRun(store, home.twin).newest()
        if newest and newest.manifest and continues(folder, newest.manifest):
            return Lineage(stored, newest)
        newest = None
    if newest is None:
        same = [other for other in homes(store, home.kind) if other.identity == home.identity]
        if any(other.name != home.name for other in same):
            return _forked(store, home, record)
        return Lineage(stored, None)
    known = record.of(store_id).known
    if newest.number == known or (newest.manifest and continues(folder, newest.manifest)):
        return Lineage(stored, newest)
    if known in stored.numbers and (mine := stored.snapshot(known)).manifest and is_at(folder, mine.manifest):
        return Lineage(stored, mine, ahead=newest.number)
    return _forked(store, home, record)


def continues(folder: Path, snapshot: Snapshot) -> bool:
    """Whether every append-only file of a snapshot is the start of the file here."""
    return _starts(folder, snapshot)


def is_at(folder: Path, snapshot: Snapshot | None) -> bool:
    """Whether the append-only files here are those of a snapshot, to the byte."""
    if snapshot is None:
        return False
    return _starts(folder, snapshot) and all(
        (facts := stat_of(folder / log.path)) and facts.st_size == log.size for log in _logs(snapshot)
    )


def _starts(folder: Path, snapshot: Snapshot) -> bool:
    for log in _logs(snapshot):
        try:
            with open_regular(folder / log.path) as file:
                if not extends(file, os.fstat(file.fileno()).st_size, log.parts):
                    return False
        except (OSError, Unreadable):  # without this log; a failing disk
            return False
    return True


def _logs(snapshot: Snapshot) -> list[StoredFile]:
    """The files that only runs append to; those of evaluations are replaced as a whole."""
    return [file for file in snapshot.files if file.path in snapshot.log_steps]


def _forked(store: ObjectStore, home: Home, record: BackupRecord) -> Lineage:
    record.parent = home.identity
    record.identity = new_identity(home.identity)
    record.stores.clear()
    return Lineage(StoredRun(store, Home(home.kind, home.name, record.identity)), None)
