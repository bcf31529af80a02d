"""The history of the runs of a store: what its backups say of each, read without checkpoints, in a temporary root."""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from grpo_train.backup.record import EVENTS, BackupRecord
from grpo_train.backup.snapshot import RUNS, Home, Snapshot, StoredFile
from grpo_train.backup.snapshots import evaluation_homes, homes, homes_named, read_manifest
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.history.database import Database, News
from grpo_train.history.news import news_of, read_curves
from grpo_train.run_dir import TABLE, RunDir, list_evaluations
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.identity import NOTE_FILE, OLDER_LAYOUT, older_identity
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, leave_out, read_bytes

RUN_FILES = ("launch.json", "config.yaml", "status.json", NOTE_FILE, EVENTS, "logs/train_log.jsonl")
EVALUATION_FILES = ("eval_config.yaml", "status.json", TABLE)
_GONE = ("missing", "damaged")
BATCH = 20
"""Runs that are written at once."""


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


def read_store(
    database: Database, store: ObjectStore, destination: str, until: float = math.inf, clock: Clock = CLOCK
) -> tuple[list[str], bool]:
    """Bring a database up to date with the runs of a store.

    A run that a box has, too, stays with the box. Returns the runs that cannot be read, with the reason, and whether
    all were looked at: after ``until`` (``clock.monotonic()``), no further run is read; the next call continues. Raises
    StoreError, HistoryError.
    """
    root, has_read, complete = root_of(store), False, True
    known, problems, batch = database.signatures(destination, root), [], []
    for home in [*runs_in(store), *homes(store, OLDER_LAYOUT)]:
        snapshot = newest_manifest(store, home)
        signature = _signature(snapshot)
        if snapshot is None or known.get(home.name) == signature:
            continue
        if has_read and clock.monotonic() > until:
            complete = False
            break
        has_read = True
        try:
            news, found = _news(store, home, snapshot, destination, root, signature)
        except (StoreError, Unreadable, OSError) as error:  # removed or damaged since it was listed
            if isinstance(error, StoreError) and error.code not in ("missing", "damaged"):
                raise
            problems.append(f"{home.name}: {error}")
            continue
        problems += [f"{home.name}: {problem}" for problem in found]
        batch.append(news)
        if len(batch) == BATCH:
            database.write(batch)
            batch = []
    database.write(batch)
    return problems, complete


def root_of(store: ObjectStore) -> str:
    """A store as the root of a record: always a URL, which tells it from the root of a box."""
    return store.url if "://" in store.url else f"file://{store.url}"


def _signature(snapshot: Snapshot | None) -> str:
    return f"{snapshot.identity} {snapshot.number}" if snapshot else ""


def _news(
    store: ObjectStore, home: Home, snapshot: Snapshot, box: str, root: str, signature: str
) -> tuple[News, tuple[str, ...]]:
    """What a snapshot says of a run, and which of its files are damaged. Raises StoreError, Unreadable, OSError."""
    with look(store, home, snapshot) as found:
        run = found.run
        row = _older_row(home, snapshot) if home.kind == OLDER_LAYOUT else _row(run, snapshot, found.state)
        text = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
        metrics, verdict = read_curves(run)
        news = news_of(
            box, root, row,
            config_text=None if text is None else text.decode(errors="replace"),
            evaluations=list_evaluations(run.root, run.name),
            events=[event for _, event in run.events()],
            metrics=metrics,
            verdict=verdict,
            signature=signature,
        )  # fmt: skip
    assert news is not None
    # Where it ran is not known: these spans must not take the place of the box's.
    news.spans, news.evaluated, news.backup = None, {}, "complete"
    return news, found.problems


def _row(run: RunDir, snapshot: Snapshot, state: str) -> dict[str, Any]:
    row = {**run.summary(), "state": state, "host": snapshot.host or None, "backup": None}
    if not row.get("identity"):
        reason = (row.get("error") or {}).get("summary") or "no launch.json"
        raise Unreadable(f"snapshot {snapshot.number}: {reason}")
    return row


def _older_row(home: Home, snapshot: Snapshot) -> dict[str, Any]:
    steps = [step.step for step in snapshot.steps]
    return {
        "run": home.name, "identity": older_identity(home.name, steps), "state": "old layout", "layout": OLDER_LAYOUT,
        "step": max(steps, default=0), "logged_at": snapshot.time,
    }  # fmt: skip
