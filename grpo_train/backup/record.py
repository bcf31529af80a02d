"""What a directory knows of its snapshots, and which of them it continues.

``.backup.json`` has its identity and the snapshots of each store that it knows; it has one writer. It is a note, not
the truth: without it the next backup compares the directory with the store. A directory continues its own snapshots, or
none, because another copy of the run has trained on. Of its predecessor a snapshot carries forward every checkpoint and
log that is proven to be in the store.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import secrets
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_train.backup.logs import extends
from grpo_train.backup.snapshot import Home, Omitted, Part, Snapshot, StoredFile, StoredStep, folder_identity
from grpo_train.backup.snapshots import StoredRun, StoredSnapshot, homes
from grpo_train.backup.store import ObjectStore
from grpo_train.run_dir.backup_note import MAX_NAME, LastBackup, parse_last_backup, steps_in_backup
from grpo_train.run_dir.files import atomic_write, read_json, read_jsonl, stat_of, to_float
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, open_regular

EVENTS = "logs/events.jsonl"


@dataclass
class StoreRecord:
    """What a directory knows about its snapshots in one store."""

    known: int = 0
    """Number of the snapshot that it made last, or was restored from; 0 = none."""
    claimed: int = 0
    """Number of a snapshot that was begun; removed if it was never completed. 0 = none."""
    claim: str = ""
    read_back: int = 0
    """Newest snapshot known here of which every byte has been read back from the store; 0 = none. A label: what decides
    is in the store (:mod:`grpo_train.backup.snapshots`)."""
    read_at: float = 0.0
    """When the first of its objects was read, by the store's clock."""
    latest: LastBackup | None = None
    """What readers without the store show."""
    steps: list[str] = field(default_factory=list)
    """Digests of the checkpoints in that snapshot (:func:`grpo_train.run_dir.backup_note.digests_in_backup`)."""

    def note_reading(self, number: int, time: float | None) -> None:
        """Note when a snapshot was read back; None: not all of it was."""
        if time is not None:
            self.read_back, self.read_at = number, time

    def describe(self, snapshot: Snapshot, destination: str, *, same_disk: bool, time: float) -> None:
        """Set ``latest`` and ``steps``; ``time``: when the snapshot was made, by the store's clock."""
        current = [step.step for step in snapshot.steps if "superseded/" not in step.path]
        self.steps = sorted(step.digest for step in snapshot.steps)
        events = next((file.size for file in snapshot.files if file.path == EVENTS), 0)
        log_step = snapshot.log_steps.get("logs/train_log.jsonl", 0)
        self.latest = LastBackup(destination[:MAX_NAME], same_disk, max(current, default=0), log_step, events, time)


@dataclass
class BackupRecord:
    identity: str
    parent: str = ""
    stores: dict[str, StoreRecord] = field(default_factory=dict)
    """Store ID to what is known of it."""
    removed: dict[str, str] = field(default_factory=dict)
    """Steps that are no longer here, and the destination that has them."""
    hashes: dict[str, list[Any]] = field(default_factory=dict)
    """Files of starting weights: [size, inode, modified and changed in ns, SHA-256], so that each is hashed once."""

    def of(self, store_id: str) -> StoreRecord:
        return self.stores.setdefault(store_id, StoreRecord())

    def note_removed(self, snapshot: Snapshot, destination: str) -> None:
        """Note the steps that only a snapshot has."""
        gone = [step for step in snapshot.steps if not step.on_box and "superseded/" not in step.path]
        for step in gone:
            self.removed.setdefault(str(step.step), destination)

    def save(self, folder: Path) -> None:
        """Raises OSError."""
        atomic_write(folder / NOTE, json.dumps(asdict(self), indent=1) + "\n")


def read_record(folder: Path) -> BackupRecord:
    """The record of a directory; a new one where it is missing or damaged. Raises OSError, Unreadable."""
    row = read_json(folder / NOTE, MAX_RUN_FILE_BYTES, finite=True) or {}
    identity, parent = row.get("identity"), row.get("parent")
    if not isinstance(identity, str) or len(identity) != 16:
        return BackupRecord(folder_identity(folder))
    record = BackupRecord(identity, parent if isinstance(parent, str) else "")
    record.removed = {str(step): name for step, name in steps_in_backup(folder).items()}
    stores, hashes = row.get("stores"), row.get("hashes")
    for store_id, facts in stores.items() if isinstance(stores, dict) else ():
        numbers = {key: facts.get(key) for key in ("known", "claimed", "read_back")} if isinstance(facts, dict) else {}
        if numbers and all(type(value) is int for value in numbers.values()):
            latest = parse_last_backup(facts.get("latest"))
            read_at, steps = to_float(facts.get("read_at")) or 0.0, facts.get("steps")
            record.stores[store_id] = StoreRecord(
                **numbers,  # type: ignore[arg-type]
                claim=str(facts.get("claim", "")),
                latest=latest,
                read_at=read_at,
                steps=[digest for digest in steps if isinstance(digest, str)] if isinstance(steps, list) else [],
            )
    if isinstance(hashes, dict):
        record.hashes = {path: facts for path, facts in hashes.items() if isinstance(facts, list) and len(facts) == 5}
    return record


def home_here(kind: str, folder: Path) -> Home:
    """The home of a directory of a root in every store. Raises OSError, Unreadable."""
    return Home(kind, folder.name, read_record(folder).identity)


def new_identity(parent: str) -> str:
    """Identity of a copy that becomes a run of its own."""
    return hashlib.sha256(f"{parent}:{secrets.token_hex(16)}".encode()).hexdigest()[:16]


def carried_steps(
    stored: StoredRun, previous: Snapshot, here: Sequence[StoredStep], events: Path
) -> tuple[list[StoredStep], list[Omitted]]:
    """Checkpoints of the predecessor that the run no longer has, and those that the store lost.

    One that a resume from an earlier step superseded in the meantime moves to ``superseded/``: restored under its old
    path it would be taken for the newest step of the run.
    """
    found, lost = [], []
    paths = {step.path for step in here}
    present = {(step.step, step.digest) for step in here}
    rewinds = rewinds_since(events, previous)
    for step in previous.steps:
        if (step.step, step.digest) in present:
            continue
        if missing := missing_part(stored, step.files):
            lost.append(Omitted(step.path, "lost", f"{missing.key} {stored.problem_of(missing)} in {stored.store.url}"))
            continue
        moved = step.path in paths or is_superseded(step, rewinds)
        found.append(replace(step, path=superseded_path(step) if moved else step.path, on_box=False))
    return found, lost


def carried_logs(stored: StoredRun, previous: Snapshot, here: Collection[str]) -> list[StoredFile]:
    """Append-only files of the predecessor that the run no longer has."""
    gone = [file for file in previous.files if file.path in previous.log_steps and file.path not in here]
    return [file for file in gone if not missing_part(stored, [file])]


def missing_part(stored: StoredRun, files: Sequence[StoredFile]) -> Part | None:
    """The first object of some files that is not in the store with its size."""
    return next((part for file in files for part in file.parts if stored.problem_of(part)), None)


def is_superseded(step: StoredStep, rewinds: Collection[int]) -> bool:
    """Whether a resume from an earlier step made a checkpoint part of another past."""
    return any(start < step.step for start in rewinds)


def superseded_path(step: StoredStep) -> str:
    """Where a superseded checkpoint belongs."""
    if "superseded/" in step.path:
        return step.path
    folder, _, name = step.path.rpartition("/")
    return posixpath.join(folder, "superseded", step.digest[:8], name)


def rewinds_since(events: Path, previous: Snapshot) -> list[int]:
    """Steps that a run was resumed from since a snapshot."""
    known = next((file.size for file in previous.files if file.path == EVENTS), 0)
    rows = [row for start, row in read_jsonl(events) if start >= known and row.get("event") == "resumed"]
    return [row["from_step"] for row in rows if type(row.get("from_step")) is int]


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
