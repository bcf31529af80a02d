"""A look at a run in a store: its small files and its log of steps, in a temporary root, without checkpoints."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

from grpo_train.backup.carry import EVENTS
from grpo_train.backup.layout import RUNS, Home
from grpo_train.backup.record import BackupRecord
from grpo_train.backup.snapshot import Snapshot, StoredFile
from grpo_train.backup.snapshots import evaluation_homes, homes, homes_named, read_manifest
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.run_dir import TABLE, RunDir
from grpo_train.run_dir.identity import NOTE_FILE
from grpo_train.run_dir.safe_json import Unreadable, leave_out

RUN_FILES = ("launch.json", "config.yaml", "status.json", NOTE_FILE, EVENTS, "logs/train_log.jsonl")
EVALUATION_FILES = ("eval_config.yaml", "status.json", TABLE)
_GONE = ("missing", "damaged")


@dataclass(frozen=True)
class StoredState:
    """What a store has of a run."""

    run: RunDir
    snapshot: Snapshot
    problems: tuple[str, ...]
    """Files that are damaged in the store, which are left out here."""

    @property
    def state(self) -> str:
        """Of the run when the snapshot was made; nothing is known of one that was live then: ``lost``."""
        return "lost" if self.snapshot.live else self.snapshot.state


def runs_in(store: ObjectStore, name: str = "") -> list[Home]:
    """The training runs of a store, or those of a name, each once. Raises StoreError."""
    found = homes_named(store, name, RUNS) if name else [home for kind in RUNS for home in homes(store, kind)]
    first: dict[str, Home] = {}
    for home in found:
        first.setdefault(home.identity, home)
    return list(first.values())


def newest_manifest(store: ObjectStore, home: Home) -> Snapshot | None:
    """The newest snapshot whose manifest is proven; None without one. Raises StoreError where the store fails."""
    return next(_manifests(store, home), None)


def _manifests(store: ObjectStore, home: Home) -> Iterator[Snapshot]:
    """The proven manifests of a run, newest first."""
    names = [name for name in store.folders(home.snapshots) if name.isascii() and name.isdecimal() and len(name) == 6]
    for name in sorted(names, reverse=True):
        try:
            yield read_manifest(store, home, int(name))
        except (Unreadable, StoreError) as error:  # never completed, damaged, or removed since it was listed
            if isinstance(error, StoreError) and error.code not in _GONE:
                raise
            leave_out(home.snapshot(int(name)), error)


@contextmanager
def look(store: ObjectStore, home: Home, snapshot: Snapshot) -> Iterator[StoredState]:
    """Fetch a :class:`StoredState`, every byte hashed; it is removed at the end. Raises StoreError, OSError."""
    with tempfile.TemporaryDirectory(prefix="grpo-look-") as name:
        root = Path(name)
        folder = root / "training_runs" / home.name
        problems = _fetch(store, snapshot, RUN_FILES, folder)
        for each in evaluation_homes(chain([snapshot], islice(_manifests(store, home), 1, None))):
            evaluation = newest_manifest(store, each)
            if evaluation is not None:
                problems += _fetch(store, evaluation, EVALUATION_FILES, root / "eval_runs" / each.name)
        for part in ("logs", "control", "training_state"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        BackupRecord(snapshot.identity, snapshot.parent).save(folder)
        yield StoredState(RunDir(folder), snapshot, tuple(problems))


def _fetch(store: ObjectStore, snapshot: Snapshot, names: tuple[str, ...], folder: Path) -> list[str]:
    """Write some files of a snapshot; returns why others could not be."""
    problems = []
    for file in (file for file in snapshot.files if file.path in names):
        target = folder / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(store, file, target)
        except StoreError as error:
            if error.code not in _GONE:
                raise
            target.unlink(missing_ok=True)
            problems.append(f"{file.path}: {error}")
    return problems


def _write(store: ObjectStore, file: StoredFile, target: Path) -> None:
    with target.open("wb") as out:
        for part in file.parts:
            digest = hashlib.sha256()
            for chunk in store.read(part.key):
                digest.update(chunk)
                out.write(chunk)
            if digest.hexdigest() != part.sha256:
                raise StoreError(f"{part.key}: its bytes differ from their SHA-256", code="damaged")
