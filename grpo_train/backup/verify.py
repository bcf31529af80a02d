"""Reading objects back: what is damaged in a store, what that spoils, and its repair from the run."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.collect import local_steps
from grpo_train.backup.job import CommandProgress, OnProgress, working_on
from grpo_train.backup.record import read_record
from grpo_train.backup.snapshot import Home, Part, Snapshot, StoredFile
from grpo_train.backup.snapshots import Reading, StoredRun, clock_of, owners, remember, unread
from grpo_train.backup.store import FilePiece, ObjectStore, StoreError
from grpo_train.backup.transfer import TRANSFERS, for_each, write
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.safe_json import leave_out

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination


@dataclass(frozen=True)
class Damage:
    """An object that differs from what its snapshots say."""

    key: str
    reason: str
    spoils: tuple[str, ...]
    """Paths in the run whose bytes it holds."""
    snapshots: tuple[int, ...]
    """Complete snapshots that name it."""
    repaired: bool
    """The file is still here, and was stored and proven again."""


@dataclass(frozen=True)
class VerifyResult:
    """Outcome of :func:`verify`."""

    kind: str
    name: str
    identity: str
    snapshots: tuple[int, ...]
    """Those whose objects were looked at."""
    objects: int
    """Objects read back."""
    bytes: int
    objects_total: int
    damaged: tuple[Damage, ...]
    unreadable: tuple[tuple[int, str], ...] = ()
    """(number, reason) of snapshots without a readable manifest."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is left damaged."""
        return all(damage.repaired for damage in self.damaged) and not self.unreadable


def verify(
    root: Path,
    home: Home,
    to: Destination,
    *,
    sample: float = 1.0,
    only_unread: bool = False,
    transfers: int = TRANSFERS,
    show: OnProgress | None = None,
) -> VerifyResult:
    """Read the objects of every snapshot back, or a random share of them, and hash them.

    ``only_unread``: those of the newest snapshot that were never read back.

    Raises StoreError for what concerns the whole store, RunDirError (``busy``).
    """
    with working_on(root, home.kind, home.name, "verify", to.name, show) as job:
        stored = StoredRun(to.store, home)
        found = list(stored.snapshots())
        readable = [snapshot.manifest for snapshot in found if snapshot.manifest]
        parts = {key: part for snapshot in readable for key, part in snapshot.parts().items()}
        keys = sorted(part.key for part in unread(stored, readable[0])) if only_unread and readable else sorted(parts)
        if sample < 1:
            keys = sorted(random.sample(keys, min(len(keys), max(1, round(sample * len(keys))))))
        chosen = [parts[key] for key in keys]
        problems, readings = read_back_all(to.store, chosen, job, transfers)
        folder = root / home.kind / home.name
        sources = _sources(folder, home, readable) if problems else {}
        damaged = [_damage(key, problem, parts[key], readable, sources, to.store, job) for key, problem in problems]
        unreadable = tuple(
            (each.number, each.reason) for each in found if each.state == "damaged" and not each.manifest
        )
        now = to.store.now() if damaged else 0.0
        readings |= {each.key: Reading(parts[each.key].sha256, now) for each in damaged if each.repaired}
        if readable:
            _note(folder, home, to.trust.store_id, readable[0].number, remember(stored, readable[0], readings))
        return VerifyResult(
            home.kind, home.name, home.identity, tuple(snapshot.number for snapshot in readable), len(chosen),
            sum(part.size for part in chosen), len(parts), tuple(damaged), unreadable,
        )  # fmt: skip


def read_back_all(
    store: ObjectStore, parts: Iterable[Part], job: CommandProgress, transfers: int
) -> tuple[list[tuple[str, str]], dict[str, Reading]]:
    """Read objects back; (key, reason) of each that is missing or damaged, and the readings of the others.

    Raises StoreError for anything else.
    """
    wanted = list(parts)
    job.update(
        phase="proving", proven=0, files=0, files_total=len(wanted), bytes_total=sum(part.size for part in wanted)
    )
    problems: list[tuple[str, str]] = []
    readings: dict[str, Reading] = {}
    clock = clock_of(store)
    lock = threading.Lock()

    def one(part: Part) -> None:
        reading = Reading(part.sha256, clock())
        try:
            store.read_back(part.key, part.size, part.sha256, lambda moved: job.add(proven=moved))
        except StoreError as error:
            if error.code not in ("missing", "damaged"):
                raise
            with lock:
                problems.append((part.key, str(error)))
        else:
            with lock:
                readings[part.key] = reading
        job.add(files=1, what=part.key)

    for_each(one, wanted, transfers)
    return sorted(problems), readings


def _sources(folder: Path, home: Home, snapshots: list[Snapshot]) -> dict[str, list[FilePiece]]:
    """Where the bytes of each object may still be on this machine."""
    found: dict[str, list[FilePiece]] = {}
    try:
        if not folder.is_dir() or read_record(folder).identity != home.identity:
            return {}
        here = {(step.step, step.digest): folder / step.path for step in local_steps(home.kind, folder)}
    except (UserError, OSError):  # a damaged record; another account's run
        return {}

    def add(file: StoredFile, path: Path) -> None:
        start = 0
        for part in file.parts:
            found.setdefault(part.key, []).append(FilePiece(path, start, part.size, part.sha256))
            start += part.size

    root = folder.parents[home.kind.count("/") + 1]
    for snapshot in snapshots:
        for file in snapshot.files:
            add(file, folder / file.path)
        for step in snapshot.steps:
            if place := here.get((step.step, step.digest)):
                for file in step.files:
                    add(file, place / file.path)
        for group in snapshot.weights:
            for file in group.files:
                place = Path(group.source) if os.path.isabs(group.source) else root / group.path
                add(file, place / file.path)
    return found


def _damage(
    key: str,
    reason: str,
    part: Part,
    snapshots: list[Snapshot],
    sources: dict[str, list[FilePiece]],
    store: ObjectStore,
    job: CommandProgress,
) -> Damage:
    named = [snapshot for snapshot in snapshots if key in snapshot.parts()]
    spoils = sorted({path for snapshot in named for path in owners(snapshot)[key]})
    repaired = any(_repair(store, part, piece, job) for piece in sources.get(key, []))
    return Damage(key, reason, tuple(spoils), tuple(snapshot.number for snapshot in named), repaired)


def _repair(store: ObjectStore, part: Part, piece: FilePiece, job: CommandProgress) -> bool:
    """Store an object again from a file that still has its bytes."""
    try:
        write(store, part.key, piece, job)
        store.read_back(part.key, part.size, part.sha256)
    except StoreError as error:  # the file changed since; a store that damages what it stores
        if error.code not in ("changed", "damaged", "missing"):
            raise
        return False
    return True


def _note(folder: Path, home: Home, store_id: str, number: int, read_at: float | None) -> None:
    """Note in the run that a snapshot was read back."""
    try:
        record = read_record(folder)
        if record.identity == home.identity:
            record.of(store_id).note_reading(number, read_at)
            record.save(folder)
    except (UserError, OSError) as error:  # another account's run; a full disk
        if folder.is_dir():  # otherwise the run is gone
            leave_out(folder / NOTE, error)
