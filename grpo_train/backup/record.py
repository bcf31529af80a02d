"""``.backup.json`` of a backed-up directory: its identity, and the snapshots of each store that it knows. One writer.

It is a note, not the truth: without it the next backup compares the directory with the store.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.backup.carry import EVENTS
from grpo_train.backup.layout import Home, folder_identity
from grpo_train.backup.snapshot import Snapshot
from grpo_train.run_dir.backup_note import MAX_NAME, LastBackup, parse_last_backup, steps_in_backup
from grpo_train.run_dir.files import atomic_write, read_json, to_float
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES


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
    is in the store (:mod:`grpo_train.backup.read_back`)."""
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
