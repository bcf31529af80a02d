"""Removing snapshots that newer complete ones contain: marked now, removed 24 hours later by the store's clock.

A snapshot goes only when every checkpoint and every byte of a log that it names is named by a complete snapshot that
stays. A checkpoint leaves the backups only by name: a new snapshot without it is written first, and then the older ones
wait their 24 hours. An object is deleted when no snapshot names it, and none has for 24 hours.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.job import OnProgress, working_on
from grpo_train.backup.record import BackupRecord, read_record
from grpo_train.backup.snapshot import ARCHIVED_RUNS, CLAIM, COMPLETE, MARK, PRUNING, Home, Snapshot, StoredStep
from grpo_train.backup.snapshots import StoredRun, StoredSnapshot
from grpo_train.backup.store import StoredObject, StoreError
from grpo_train.backup.take import PRUNING_S, claim_number, commit
from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import utc_now
from grpo_train.run_dir.processes import boot_id

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination

WAIT_S = 86_400.0
_BATCH = 1_000


@dataclass(frozen=True)
class Stays:
    """A snapshot beyond ``--keep-last`` that is not removed."""

    snapshot: int
    reason: str


@dataclass(frozen=True)
class PruneResult:
    """Outcome of :func:`prune`."""

    kind: str
    name: str
    identity: str
    removed: tuple[int, ...]
    """Snapshots that were marked at least 24 hours ago."""
    marked: tuple[int, ...]
    """Snapshots that a prune after 24 hours will remove."""
    waiting: tuple[int, ...]
    """Those of ``marked`` that were marked before."""
    stays: tuple[Stays, ...]
    dropped_steps: tuple[int, ...]
    objects: int
    """Objects deleted that no snapshot names; of a dry run those that would be."""
    bytes: int
    new_snapshot: int = 0
    """Written without the dropped steps; 0 = none."""

    @property
    def changes(self) -> bool:
        """Whether anything is marked, removed, dropped or deleted."""
        return bool(self.removed or self.dropped_steps or self.objects or set(self.marked) - set(self.waiting))


def prune(
    root: Path,
    home: Home,
    to: Destination,
    *,
    keep_last: int,
    drop_steps: Sequence[int] = (),
    dry_run: bool = False,
    show: OnProgress | None = None,
) -> PruneResult:
    """Mark and remove snapshots of one run. Raises RunDirError (``busy``, ``no_checkpoint``), StoreError, OSError."""
    with working_on(root, home.kind, home.name, "prune", to.name, show) as job:
        stored = StoredRun(to.store, home)
        new = 0
        if left := _not_dropped(stored, drop_steps):
            snapshot = _without_steps(stored, left)
            if not dry_run:
                new = _write(root, stored, to.trust.store_id, snapshot)
                stored = StoredRun(to.store, home)
        found = list(stored.snapshots())
        now = to.store.now()
        kept, marked, removed, stays = _sort(found, keep_last, now)
        if dry_run:
            spare = _spare_objects(stored, [*kept, *marked], now)
            return _result(home, removed, marked, stays, drop_steps, len(spare), sum(s.size for s in spare), new)
        job.update(phase="deleting", files_total=len(removed))
        for each in found:
            if each in kept and each.marked is not None:  # what made it spare is gone
                to.store.delete([home.snapshot(each.number, MARK)])
        for each in marked:
            if each.marked is None:
                to.store.write_small(home.snapshot(each.number, MARK), f"{utc_now()}\n".encode())
        _remove_own_mark(stored, root, now)
        count, size = _delete(stored, removed, [*kept, *marked], now, _writer(root))
        return _result(home, removed, marked, stays, drop_steps, count, size, new)


def _result(
    home: Home, removed: Iterable[StoredSnapshot], marked: Sequence[StoredSnapshot], stays: Sequence[Stays],
    steps: Sequence[int], count: int, size: int, new: int,
) -> PruneResult:  # fmt: skip
    before = [each for each in marked if each.marked is not None]
    gone, due, waiting = (tuple(each.number for each in group) for group in (removed, marked, before))
    return PruneResult(
        home.kind, home.name, home.identity, gone, due, waiting, tuple(stays), tuple(steps), count, size, new
    )


def _sort(
    found: Sequence[StoredSnapshot], keep_last: int, now: float
) -> tuple[list[StoredSnapshot], list[StoredSnapshot], list[StoredSnapshot], list[Stays]]:
    """(kept, to be marked, to be removed, reasons to stay) of snapshots, newest first."""
    complete = [each for each in found if each.is_complete]
    kept, marked, removed, stays = complete[: max(1, keep_last)], [], [], []
    for each in found:
        if each in kept:
            continue
        if not complete or each.number > complete[0].number:
            reason = "no newer snapshot is complete" if each.state != "incomplete" else "it may be at work"
        elif each.manifest is None:
            reason = ""
        else:
            reason = _not_contained(each.manifest, [k.manifest for k in kept if k.is_complete and k.manifest])
        if reason:
            kept.append(each)
            stays.append(Stays(each.number, reason))
        elif each.marked is not None and now - each.marked >= WAIT_S:
            removed.append(each)
        else:
            marked.append(each)
    return kept, marked, removed, stays


def _not_contained(old: Snapshot, newer: Sequence[Snapshot]) -> str:
    """What of a snapshot no newer one names; "" if every step and segment is."""
    steps = {(step.step, step.digest) for snapshot in newer for step in snapshot.steps}
    dropped = newer[0].dropped
    for step in old.steps:
        if (step.step, step.digest) not in steps and step.digest not in dropped:
            return f"step_{step.step} is in no newer snapshot"
    parts = {key for snapshot in newer for key in snapshot.parts()}
    for file in old.files:
        if file.path in old.log_steps and any(part.key not in parts for part in (*file.parts, *file.replaced)):
            return f"bytes of {file.path} are in no newer snapshot"
    return ""


def _delete(
    stored: StoredRun, removed: Sequence[StoredSnapshot], stay: Sequence[StoredSnapshot], now: float, writer: bytes
) -> tuple[int, int]:
    """Delete snapshots, then the objects that no other names; (objects, bytes). Raises StoreError (``busy``)."""
    store, home = stored.store, stored.home
    spare = _spare_objects(stored, stay, now)
    if not removed and not spare:
        return 0, 0
    _exclude_backups(stored, now, writer)
    try:
        for each in removed:
            store.delete([home.snapshot(each.number, COMPLETE)])  # from here on it is not complete
            mark = home.snapshot(each.number, MARK)  # goes last: a rerun after a kill removes what is left
            keys = [key for key in stored.objects if key.startswith(home.snapshot(each.number)) and key != mark]
            store.delete(keys)
            store.delete([mark])
        for start in range(0, len(spare), _BATCH):
            store.write_small(home.snapshots + PRUNING, writer)
            store.delete([entry.key for entry in spare[start : start + _BATCH]])
        return len(spare), sum(entry.size for entry in spare)
    finally:
        store.delete([home.snapshots + PRUNING])


def _spare_objects(stored: StoredRun, stay: Sequence[StoredSnapshot], now: float) -> list[StoredObject]:
    """Objects that no snapshot names, stored more than a day ago; none where a manifest cannot be read."""
    home = stored.home
    unreadable = any(each.state == "damaged" and not each.manifest for each in stay)
    if unreadable or not any(each.manifest for each in stay):
        return []
    named = {key for each in stay if each.manifest for key in each.manifest.parts()} | _archived(stored)
    return [
        entry
        for key, entry in stored.objects.items()
        if key.startswith(home.prefix)
        and not key.startswith(home.snapshots)
        and key not in named
        and now - entry.modified >= WAIT_S
    ]


def _exclude_backups(stored: StoredRun, now: float, writer: bytes) -> None:
    """Raise StoreError (``busy``) if a backup was made since the listing, or is about to name other objects."""
    mark = stored.home.snapshots + PRUNING
    stored.store.write_small(mark, writer)
    for entry in stored.store.entries(stored.home.snapshots):
        is_claimed = f"/{CLAIM}" in entry.key and now - entry.modified < WAIT_S
        is_new = entry.key.endswith(f"/{COMPLETE}") and entry.key not in stored.objects
        if is_claimed or is_new:
            stored.store.delete([mark])
            raise StoreError(f"{stored.home.name}: a backup is at work; prune when it has ended", code="busy")


def _writer(root: Path) -> bytes:
    """Content of the mark of a prune: this root on this machine since it was started."""
    return hashlib.sha256(f"{boot_id()} {os.path.realpath(root)}".encode()).hexdigest().encode()


def _remove_own_mark(stored: StoredRun, root: Path, now: float) -> None:
    """Remove the mark of a killed prune: of this root, whose lock is held here, or of any that is an hour old."""
    entry = stored.objects.get(stored.home.snapshots + PRUNING)
    if entry is None:
        return
    try:
        is_own = bool(boot_id()) and stored.store.read_small(entry.key, 1 << 10) == _writer(root)
    except StoreError as error:  # another prune has just removed it
        if error.code not in ("missing", "damaged"):
            raise
        is_own = False
    if is_own or now - entry.modified >= PRUNING_S:
        stored.store.delete([entry.key])


def _archived(stored: StoredRun) -> set[str]:
    """Objects that the archived run names."""
    home = stored.home
    twin = Home(ARCHIVED_RUNS, home.name, home.identity)
    if home.kind != "training_runs":
        return set()
    found = StoredRun(stored.store, twin).snapshots()
    return {key for each in found if each.manifest for key in each.manifest.parts()}


# ------------------------------------------------------------------------------------------------------- dropping


def _not_dropped(stored: StoredRun, steps: Sequence[int]) -> list[int]:
    """Steps that the newest snapshot has, or no snapshot had; a prune that was killed dropped the others."""
    newest = stored.newest()
    if not steps or newest is None or newest.manifest is None:
        return list(steps)
    have = {step.step for step in newest.manifest.steps}
    manifests = [each.manifest for each in stored.snapshots() if each.manifest]
    gone = {step.step for old in manifests for step in old.steps if step.digest in newest.manifest.dropped}
    return [step for step in steps if step in have or step not in gone]


def _without_steps(stored: StoredRun, steps: Sequence[int]) -> Snapshot:
    """The newest snapshot without some checkpoints. Raises RunDirError."""
    newest = stored.newest()
    if newest is None or newest.manifest is None:
        raise RunDirError(f"{stored.home.name} has no complete snapshot", code="no_backup")
    have = {step.step for step in newest.manifest.steps}
    if missing := sorted(set(steps) - have):
        raise RunDirError(
            f"snapshot {newest.number} of {stored.home.name} has no step_{missing[0]} "
            f"(steps: {', '.join(map(str, sorted(have)))})",
            code="no_checkpoint",
        )

    def stays(step: StoredStep) -> bool:
        return step.step not in steps

    links = {link.path: link.target for link in newest.manifest.links}
    pointed = [step for step in newest.manifest.steps if not stays(step) and step.path in _targets(links)]
    if pointed:
        raise RunDirError(
            f"step_{pointed[0].step} is what {stored.home.name} resumes from; it is not dropped", code="bad_option"
        )
    gone = (step.digest for step in newest.manifest.steps if not stays(step))
    return replace(
        newest.manifest,
        steps=tuple(filter(stays, newest.manifest.steps)),
        dropped=(*newest.manifest.dropped, *gone),
        time=utc_now(),
    )


def _targets(links: dict[str, str]) -> set[str]:
    return {f"{path.rpartition('/')[0]}/{target}".lstrip("/") for path, target in links.items()}


def _write(root: Path, stored: StoredRun, store_id: str, snapshot: Snapshot) -> int:
    """Commit a snapshot whose objects are all in the store; returns its number."""
    home = stored.home
    folder = root / home.kind / home.name
    record = BackupRecord(home.identity)
    with suppress(UserError, OSError):  # a damaged record; another account's
        here = read_record(folder)
        record = here if here.identity == home.identity else record

    def save() -> None:
        if folder.is_dir() and record.stores and read_record(folder).identity == home.identity:
            record.save(folder)

    known = record.of(store_id)
    was_newest = known.known == max(stored.numbers, default=0)
    before = known.known
    claim_number(stored, known, save)
    done, read_at = commit(stored, snapshot, known, save, {})
    known.steps = sorted({step.digest for step in done.steps} & set(known.steps))
    if not was_newest:
        known.known = before
    else:
        known.note_reading(done.number, read_at)
    save()
    return done.number
