"""Taking a snapshot of one directory of a root, of a live run too.

It becomes visible in this order: a number is claimed, the objects are stored, then the manifest, then ``COMPLETE``. Two
boxes may choose the same number at once. Each writes a claim under a random name before it lists the claims, so at
least one sees both; who sees another takes the next number. A prune deletes objects that no manifest names, which a
backup may be about to name: it writes a mark before it looks for claims, and a backup looks for the mark after it wrote
its claim.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.backup.job import CommandProgress, OnProgress, working_on
from grpo_train.backup.plan import Plan, planned, without_unsent
from grpo_train.backup.record import BackupRecord, Lineage, StoreRecord, find_lineage, read_record
from grpo_train.backup.snapshot import (
    CLAIM,
    COMPLETE,
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    PRUNING,
    READ_BACK,
    Home,
    Omitted,
    Snapshot,
)
from grpo_train.backup.snapshots import Reading, StoredRun, StoredSnapshot, completion_of, evaluation_homes, remember
from grpo_train.backup.store import StoreError
from grpo_train.backup.transfer import TRANSFERS, Sent, send
from grpo_train.run_dir import RunDirError
from grpo_train.run_dir.errors import UserError

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination

_STALE_S = 7 * 86_400.0
"""Age of an unfinished upload that no backup will continue."""
PRUNING_S = 3600.0
"""Age at which the mark of a prune counts as left by a kill."""
_LAST = 999_999


@dataclass(frozen=True)
class BackupResult:
    """Outcome of :func:`back_up`."""

    kind: str
    name: str
    identity: str
    destination: str
    snapshot: int
    """Number of the newest complete snapshot that holds this state; 0 after a dry run without one."""
    is_new: bool
    """False: nothing had changed since that snapshot, or a dry run."""
    steps: tuple[int, ...]
    """Steps in the snapshot."""
    size: int
    """Bytes of all its objects."""
    bytes_sent: int
    objects_sent: int
    omitted: tuple[Omitted, ...] = ()
    """What was left out, or kept in the store only."""
    parent: str = ""
    """Set where another copy of this run went on, and this one became a run of its own."""
    ahead: int = 0
    """A newer snapshot by another copy of this run, which has gone on while this one has not; 0 = none."""
    evaluations: tuple[BackupResult, ...] = ()


def back_up(
    root: Path,
    kind: str,
    name: str,
    to: Destination,
    *,
    steps: str = "all",
    transfers: int = TRANSFERS,
    dry_run: bool = False,
    show: OnProgress | None = None,
    evaluations: Sequence[BackupResult] = (),
) -> BackupResult:
    """Take a snapshot of ``ROOT/KIND/NAME``, unless nothing changed since the last one.

    ``steps``: ``all``, ``latest``, ``final`` or numbers, separated by commas; steps that an earlier snapshot holds are
    carried forward in any case. Raises RunDirError (``busy``, ``no_run``, ``no_checkpoint``), StoreError, OSError.
    """
    folder = root / kind / name
    if not folder.is_dir():
        raise RunDirError(f"no directory {folder}", code="no_run")
    with working_on(root, kind, name, "backup", to.name, show) as job:
        job.update(phase="listing")
        record = read_record(folder)
        lineage = find_lineage(to.store, to.trust.store_id, Home(kind, name, record.identity), folder, record)
        plan = planned(root, folder, lineage, record, steps, job)
        plan.snapshot = replace(plan.snapshot, evaluations=_named(evaluations, lineage.previous))
        done = _dry(lineage, plan) if dry_run else _stored(folder, lineage, plan, record, to, transfers, job)
        return replace(done, destination=to.name, ahead=lineage.ahead, evaluations=tuple(evaluations))


def _stored(
    folder: Path,
    lineage: Lineage,
    plan: Plan,
    record: BackupRecord,
    to: Destination,
    transfers: int,
    job: CommandProgress,
) -> BackupResult:
    known = record.of(to.trust.store_id)
    stored, previous = lineage.stored, lineage.previous

    def save() -> None:
        with suppress(OSError):  # a full or read-only disk: the next backup compares the run with the store
            record.save(folder)

    proven = set(previous.manifest.parts()) if previous and previous.manifest else set()
    missing = [each for each in plan.uploads if each.part.key not in proven or stored.problem_of(each.part)]
    before = previous.manifest if previous and previous.is_complete and previous.home == stored.home else None
    if lineage.ahead or (before and not missing and _content(before) == _content(plan.snapshot)):
        assert previous is not None
        assert previous.manifest is not None
        known.known = previous.number
        known.describe(previous.manifest, to.name, same_disk=to.trust.same_disk, time=previous.modified)
        remove_unfinished(stored, known)
        save()
        return _result(replace(plan.snapshot, number=previous.number), Sent({}), is_new=False)
    claim_number(stored, known, save)
    try:
        sent = send(stored, missing, job, transfers)
        snapshot = without_unsent(plan.snapshot, previous.manifest if previous else None, sent)
        job.update(phase="proving", what="manifest")
        if before and _content(before) == _content(snapshot):  # all that was new could not be sent
            release(stored, known, save)
            return _result(replace(snapshot, number=before.number), sent, is_new=False)
        done, read_at = commit(stored, snapshot, known, save, sent.read)
    except (UserError, OSError):
        with suppress(UserError, OSError):  # the store that failed
            remove_unfinished(stored, known)
            save()
        raise
    known.note_reading(done.number, read_at)
    record.note_removed(done, to.name)
    known.describe(done, to.name, same_disk=to.trust.same_disk, time=to.store.now())
    save()
    to.store.abort_stale_uploads(stored.home.prefix, _STALE_S)
    return _result(done, sent, is_new=True)


def _named(evaluations: Sequence[BackupResult], previous: StoredSnapshot | None) -> tuple[str, ...]:
    """Folders of the evaluations of a run: those just stored, and others that the snapshot before names."""
    new = [Home("eval_runs", each.name, each.identity) for each in evaluations]
    names = {each.name for each in new}
    before = [each for each in evaluation_homes([previous.manifest]) if each.name not in names] if previous else []
    return tuple(f"{each.name}--{each.identity}" for each in (*new, *before))


def _dry(lineage: Lineage, plan: Plan) -> BackupResult:
    missing = {u.part.key: u.part for u in plan.uploads if lineage.stored.problem_of(u.part)}
    sent = Sent({}, sum(part.size for part in missing.values()), len(missing))
    number = lineage.previous.number if lineage.previous else 0
    return _result(replace(plan.snapshot, number=number), sent, is_new=False)


def _result(snapshot: Snapshot, sent: Sent, *, is_new: bool) -> BackupResult:
    return BackupResult(
        snapshot.kind, snapshot.name, snapshot.identity, "", snapshot.number, is_new,
        tuple(sorted({step.step for step in snapshot.steps})), snapshot.size, sent.bytes, sent.objects,
        snapshot.omitted, snapshot.parent,
    )  # fmt: skip


def _content(snapshot: Snapshot) -> tuple[Any, ...]:
    """What makes two snapshots the same: everything but when and where they were made."""
    steps = sorted(snapshot.steps, key=lambda step: (step.path, step.digest))
    files = sorted(snapshot.files, key=lambda file: file.path)
    return (
        snapshot.parent, steps, files, sorted(snapshot.links, key=lambda link: link.path), snapshot.hub, snapshot.data,
        snapshot.weights, snapshot.evaluations, snapshot.omitted,
    )  # fmt: skip


def claim_number(stored: StoredRun, record: StoreRecord, save: Callable[[], None]) -> int:
    """Reserve the number of a new snapshot; what a killed backup of this directory left is removed first.

    ``save`` stores the record. Raises StoreError (``busy``) while a prune is at work.
    """
    store, home = stored.store, stored.home
    remove_unfinished(stored, record)
    number = max(stored.numbers, default=0) + 1
    while True:
        if number > _LAST:
            raise StoreError(f"{home.snapshots} in {store.url} is full; prune it", code="full")
        record.claimed, record.claim = number, f"{CLAIM}{secrets.token_hex(8)}"
        save()
        claim = home.snapshot(number, record.claim)
        store.write_small(claim, b"")
        if [entry.key for entry in store.entries(home.snapshot(number))] == [claim]:
            break
        store.delete([claim])
        number += 1
    mark = store.head(home.snapshots + PRUNING)
    if mark and store.now() - mark.modified < PRUNING_S:
        release(stored, record, save)
        raise StoreError(
            f"{home.name}: grpo-train prune-backups is at work in {store.url}; rerun this command when that has ended",
            code="busy",
        )
    return number


def release(stored: StoredRun, record: StoreRecord, save: Callable[[], None]) -> None:
    """Give a claimed number up, or end the claim of a completed snapshot."""
    stored.store.delete([stored.home.snapshot(record.claimed, record.claim)])
    record.claimed, record.claim = 0, ""
    save()


def commit(
    stored: StoredRun,
    snapshot: Snapshot,
    record: StoreRecord,
    save: Callable[[], None],
    read: Mapping[str, Reading],
) -> tuple[Snapshot, float | None]:
    """Write a snapshot, whose objects are all proven, under the claimed number. Raises StoreError.

    ``read``: what was read back for it. It is remembered before the snapshot is complete: after a kill in between,
    objects that were read would count as never read.

    Returns the snapshot, and when all of it was read back (:func:`grpo_train.backup.snapshots.remember`).
    """
    home, number = stored.home, record.claimed
    snapshot = replace(snapshot, number=number)
    data = snapshot.to_json()
    if len(data) > MAX_MANIFEST_BYTES:
        raise StoreError(f"the manifest of {home.name} would have {len(data)} bytes", code="full")
    _write_proven(stored, home.snapshot(number, MANIFEST_NAME), data)
    read_at = remember(stored, snapshot, read)
    _write_proven(stored, home.snapshot(number, COMPLETE), completion_of(data))
    record.known = number
    release(stored, record, save)
    return snapshot, read_at


def remove_unfinished(stored: StoredRun, record: StoreRecord) -> None:
    """Remove what a killed backup of this directory left of its snapshot; a complete one stays."""
    number, home = record.claimed, stored.home
    if not number or not record.claim:
        return
    keys = {entry.key for entry in stored.store.entries(home.snapshot(number))}
    mine = home.snapshot(number, record.claim)
    if mine in keys:
        if home.snapshot(number, COMPLETE) in keys:
            stored.store.delete([mine])
        else:
            stored.store.delete([home.snapshot(number, name) for name in (MANIFEST_NAME, READ_BACK, record.claim)])
            stored.forget(home.snapshot(number))
    record.claimed, record.claim = 0, ""


def _write_proven(stored: StoredRun, key: str, data: bytes) -> None:
    stored.store.write_small(key, data)
    if stored.store.read_small(key, len(data)) != data:
        raise StoreError(f"{key}: {stored.store.url} holds other bytes than were sent", code="damaged")
