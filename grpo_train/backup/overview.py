"""What a store holds, and how far each run of a root is ahead of its backup."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.collect import collect
from grpo_train.backup.logs import plan_log
from grpo_train.backup.record import read_record
from grpo_train.backup.snapshot import Home, Snapshot
from grpo_train.backup.snapshots import StoredRun, homes, homes_named
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import UserError, message_of
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.safe_json import Unreadable

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination


@dataclass(frozen=True)
class Lag:
    """What a directory holds that its newest snapshot lacks."""

    steps: tuple[int, ...]
    """Complete checkpoints."""
    log_steps: int
    """Training steps logged since."""
    log_bytes: int
    files: int
    """Other files that are new or changed."""

    @property
    def is_none(self) -> bool:
        return not (self.steps or self.log_bytes or self.files)


@dataclass(frozen=True)
class SnapshotRow:
    number: int
    state: str
    """``complete``, ``incomplete``, ``damaged``, or ``marked`` (complete, to be removed by ``prune-backups``)."""
    reason: str
    time: str
    """By the clock of the machine that made it."""
    age_s: float
    """By the store's clock."""
    steps: tuple[int, ...]
    bytes: int
    run_state: str


@dataclass(frozen=True)
class BackupRow:
    """One run in a store."""

    kind: str
    name: str
    identity: str
    parent: str
    destination: str
    same_disk: bool | None
    """The store is on the disk of the root: no second copy. None where that was not tried."""
    snapshots: tuple[SnapshotRow, ...]
    """Newest first."""
    lag: Lag | None
    """None where the run is not below this root, or was not compared."""
    here: bool = False
    """Whether the run is below this root."""
    error: str = ""
    """Why the run here cannot be compared."""


def list_backups(
    root: Path, to: Destination, run: str | None = None, *, tried: bool = True, compare: bool = True
) -> Iterator[BackupRow]:
    """Every run in a store, or those of one name; ``tried``: the store was opened for writing. Raises StoreError.

    To ``compare`` a run with its backup, its logs are read.
    """
    now = to.store.now()
    for home in homes_named(to.store, run) if run else homes(to.store):
        yield backup_row(root, to, home, now, to.trust.same_disk if tried else None, compare=compare)


def backup_row(
    root: Path, to: Destination, home: Home, now: float, same_disk: bool | None, *, compare: bool = True
) -> BackupRow:
    """Raises StoreError."""
    stored = StoredRun(to.store, home)
    found = list(stored.snapshots())
    rows = []
    for each in found:
        manifest = each.manifest
        rows.append(
            SnapshotRow(
                each.number,
                "marked" if each.is_complete and each.marked is not None else each.state,
                each.reason,
                manifest.time if manifest else "",
                max(0.0, now - each.modified),
                tuple(sorted({step.step for step in manifest.steps})) if manifest else (),
                manifest.size if manifest else 0,
                manifest.state if manifest else "",
            )
        )
    newest = next((each.manifest for each in found if each.is_complete), None)
    lag, error, here = None, "", False
    folder = root / home.kind / home.name
    try:
        here = folder.is_dir() and read_record(folder).identity == home.identity
        if here and compare:
            lag = lag_of(folder, newest, home)
    except (UserError, OSError) as problem:
        error = message_of(problem)
    parent = newest.parent if newest else ""
    return BackupRow(home.kind, home.name, home.identity, parent, to.name, same_disk, tuple(rows), lag, here, error)


def lag_of(folder: Path, snapshot: Snapshot | None, home: Home) -> Lag:
    """Compare a directory with a snapshot; None = it has none. Raises OSError, Unreadable."""
    contents = collect(home.kind, folder)
    stored = {(step.step, step.digest) for step in snapshot.steps} if snapshot else set()
    known = {file.path: file for file in snapshot.files} if snapshot else {}
    log_bytes = files = 0
    for path in contents.logs:
        plan = plan_log(folder / path, known.get(path), lambda start, end, digest: "", whole_lines=False)
        log_bytes += sum(part.size for part, _ in plan.added)
    for path in contents.files:
        stored_file = known.get(path)
        files += stored_file is None or [part.sha256 for part in stored_file.parts] != [_digest(folder / path)]
    last = RunDir(folder).last_step_row().get("step", 0) if contents.logs else 0
    behind = (last if type(last) is int else 0) - (snapshot.log_steps.get("logs/train_log.jsonl", 0) if snapshot else 0)
    new = sorted(step.step for step in contents.steps if (step.step, step.digest) not in stored)
    return Lag(tuple(new), max(0, behind), log_bytes, files)


def _digest(path: Path) -> str:
    try:
        return sha256(path)
    except (OSError, Unreadable):  # removed in the meantime
        return hashlib.sha256(b"").hexdigest()
