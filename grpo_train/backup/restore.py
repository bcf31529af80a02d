"""Restoring a run from a snapshot: into a hidden directory, every byte hashed, made visible by one rename."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.collect import local_steps
from grpo_train.backup.job import OnProgress, working_on
from grpo_train.backup.record import (
    EVENTS,
    BackupRecord,
    StoreRecord,
    continues,
    is_at,
    is_superseded,
    new_identity,
    read_record,
    rewinds_since,
    superseded_path,
)
from grpo_train.backup.restore_evaluation import complete_evaluation
from grpo_train.backup.snapshot import Home, Omitted, Snapshot, StoredStep
from grpo_train.backup.snapshots import StoredRun, StoredSnapshot, homes_named
from grpo_train.backup.store import ObjectStore, StoreError
from grpo_train.backup.transfer import TRANSFERS, Wanted, check_space, download
from grpo_train.run_dir import RunDirError, check_name
from grpo_train.run_dir.files import fsync_path, remove_tree, sync_tree
from grpo_train.run_dir.identity import NOTE
from grpo_train.run_dir.root import prepare_root

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination

LIVE_S = 600.0
"""Age up to which a snapshot of a live run says that it still trains elsewhere."""


@dataclass(frozen=True)
class RestoreResult:
    """Outcome of :func:`restore_folder`."""

    kind: str
    name: str
    identity: str
    path: str
    snapshot: int
    steps: tuple[int, ...]
    """Steps restored by this command."""
    bytes: int
    is_new: bool
    """False: missing checkpoints were added to a run that was here."""
    omitted: tuple[Omitted, ...] = ()
    """Files that are damaged in the store; what they spoil was left out."""
    weights: tuple[tuple[str, str], ...] = ()
    """(source, path) of starting weights that were named by a path outside the root, and where they are now."""
    hub: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    """Data that the run needs and that is missing on this machine."""
    evaluations: tuple[RestoreResult, ...] = ()


def find_home(store: ObjectStore, name: str, kinds: tuple[str, ...]) -> Home:
    """The run of this name in a store; ``NAME--IDENTITY`` picks one of several. Raises RunDirError."""
    found = homes_named(store, name, kinds)
    if not found:
        raise RunDirError(f"no backup of '{name}' in {store.url}; see  grpo-train list-backups", code="no_backup")
    if len(found) > 1:
        names = ", ".join(f"{home.name}--{home.identity}" for home in found)
        raise RunDirError(f"{store.url} holds several runs '{name}': {names}; name one in full", code="ambiguous")
    return found[0]


def pick_snapshot(stored: StoredRun, number: int | None) -> StoredSnapshot:
    """A snapshot by number, or the newest complete one. A damaged one is picked only by number. Raises RunDirError."""
    if number is None:
        if found := stored.newest() or stored.newest_readable():
            return found
        states = ", ".join(f"{s.number} {s.state}" for s in stored.snapshots()) or "none"
        raise RunDirError(f"{stored.home.name} has no complete snapshot ({states})", code="no_backup")
    chosen = stored.snapshot(number) if number in stored.numbers else None
    if chosen and chosen.manifest:
        return chosen
    have = ", ".join(str(s.number) for s in stored.snapshots() if s.is_complete) or "none"
    reason = f"is {chosen.state}: {chosen.reason}" if chosen else "does not exist"
    raise RunDirError(f"snapshot {number} of {stored.home.name} {reason} (complete: {have})", code="no_backup")


def restore_folder(
    root: Path,
    home: Home,
    source: Destination,
    *,
    number: int | None = None,
    steps: str = "all",
    as_name: str | None = None,
    must_be_idle: bool = False,
    transfers: int = TRANSFERS,
    show: OnProgress | None = None,
) -> RestoreResult:
    """Restore a directory below a root, or add missing checkpoints or results to the same run or evaluation there.

    ``steps``: ``all``, ``latest``, ``logs`` (none) or numbers. Under ``as_name`` it becomes a run of its own.
    ``must_be_idle``: refuse a run that was live in a recent snapshot. Raises RunDirError, StoreError, OSError.
    """
    name = as_name or home.name
    if home.kind == "training_runs" or as_name:
        check_name(name)
    prepare_root(root)
    folder = root / home.kind / name
    with working_on(root, home.kind, name, "restore", source.name, show) as job:
        job.update(phase="listing")
        stored = StoredRun(source.store, home)
        chosen = pick_snapshot(stored, number)
        if must_be_idle:
            refuse_recently_live(stored)
        snapshot = chosen.manifest
        assert snapshot is not None
        wanted_steps = pick_steps(snapshot, steps)
        exists = os.path.lexists(folder)
        if exists and not _is_same(folder, home):
            raise RunDirError(
                f"{folder} exists and is another run; restore under another name with --as", code="name_taken"
            )
        if exists and home.kind == "eval_runs":
            added, failed = complete_evaluation(folder, snapshot, source.store, job, transfers)
            omitted = tuple(Omitted(owner, error.code, str(error)) for owner, error in failed.items())
            return RestoreResult(
                home.kind, name, home.identity, os.fspath(folder), snapshot.number, tuple(added), job.now.bytes,
                is_new=False, omitted=omitted,
            )  # fmt: skip
        if exists:
            wanted_steps = _missing_here(folder, snapshot, wanted_steps)
        target = folder if exists else _staging(folder, home, snapshot.number)
        files = [] if exists else [Wanted(target / file.path, file, file.path) for file in snapshot.files]
        for step in wanted_steps:
            files += _step_files(target, step)
        files += _weight_files(root, snapshot)
        check_space(root, sum(each.file.size for each in files if not each.target.exists()))
        failed = download(source.store, files, job, transfers)
        restored = [step for step in wanted_steps if _show_step(target, step, is_damaged=step.path in failed)]
        _show_weights(root, snapshot, failed)
        if exists and is_at(folder, snapshot):  # it has not gone on, so its links are those of the snapshot
            _add_links(folder, snapshot)
        if not exists:
            _finish(target, folder, chosen, source, renamed=as_name not in (None, home.name))
        identity = read_record(folder).identity
        moved = [(w.source, os.fspath(root / w.path)) for w in snapshot.weights if os.path.isabs(w.source)]
        return RestoreResult(
            home.kind, name, identity, os.fspath(folder), snapshot.number,
            tuple(sorted(step.step for step in restored)), job.now.bytes, not exists,
            tuple(Omitted(owner, error.code, str(error)) for owner, error in failed.items()),
            tuple(moved), snapshot.hub, tuple(path for path in snapshot.data if not os.path.exists(root / path)),
        )  # fmt: skip


def refuse_recently_live(stored: StoredRun) -> None:
    """Raise RunDirError (``run_is_live``) if the newest snapshot was made of a live run minutes ago."""
    newest = stored.newest()
    if newest is None or newest.manifest is None or not newest.manifest.live:
        return
    age = stored.store.now() - newest.modified
    if age < LIVE_S:
        raise RunDirError(
            f"{stored.home.name} was {newest.manifest.state} on {newest.manifest.host} {max(0.0, age):.0f} s ago; stop "
            f"it there, or wait until its last snapshot is {LIVE_S / 60:.0f} minutes old",
            code="run_is_live",
        )


def pick_steps(snapshot: Snapshot, which: str) -> list[StoredStep]:
    """The checkpoints of ``--steps`` in a snapshot. Raises RunDirError (``no_checkpoint``)."""
    current = [step for step in snapshot.steps if "superseded/" not in step.path]
    if which == "all":
        return list(snapshot.steps)
    if which == "logs":
        return []
    if which == "latest":
        links = {link.path.rpartition("/")[2]: link.target for link in snapshot.links}
        named = [step for step in current if step.path.rpartition("/")[2] == links.get("step_latest")]
        return named or sorted(current, key=lambda step: step.step)[-1:]
    numbers = {int(word) for word in which.split(",") if word.isascii() and word.isdecimal()}
    if len(numbers) != len(which.split(",")):
        raise RunDirError(f"--steps {which}: use all, latest, logs, or steps such as 10,20", code="no_checkpoint")
    if missing := sorted(numbers - {step.step for step in current}):
        have = ", ".join(str(step.step) for step in sorted(current, key=lambda step: step.step)) or "none"
        raise RunDirError(f"snapshot {snapshot.number} has no step_{missing[0]} (steps: {have})", code="no_checkpoint")
    return [step for step in current if step.step in numbers]


# ---------------------------------------------------------------------------------------------------- where to


def _staging(folder: Path, home: Home, number: int) -> Path:
    """Hidden directory of an unfinished restore; the next one continues it, as whole files stay."""
    staging = folder.with_name(f".restore-{folder.name}-{home.identity}-{number}")
    for other in folder.parent.glob(f"{glob.escape(f'.restore-{folder.name}-{home.identity}-')}*"):
        if other != staging:
            remove_tree(other)
    staging.mkdir(parents=True, exist_ok=True)
    return staging


def _is_same(folder: Path, home: Home) -> bool:
    """Whether a directory is what a home holds; an evaluation without its config was killed as it began. Raises
    OSError, Unreadable."""
    if not folder.is_dir():
        return False
    begun = home.kind == "eval_runs" and not any((folder / name).exists() for name in (NOTE, "eval_config.yaml"))
    return begun or read_record(folder).identity == home.identity


def _missing_here(folder: Path, snapshot: Snapshot, steps: Sequence[StoredStep]) -> list[StoredStep]:
    """Checkpoints to add to a run that is here, which must continue the snapshot. Raises RunDirError (``diverged``).

    Those that were superseded after the snapshot go to ``superseded/``.
    """
    if not continues(folder, snapshot):
        raise RunDirError(
            f"{folder} lacks log lines of snapshot {snapshot.number} or has others: it is an older or another copy of "
            "the run; restore under another name with --as",
            code="diverged",
        )
    rewinds = rewinds_since(folder / EVENTS, snapshot)
    moved = [step if step.path == path else replace(step, path=path) for step in steps for path in [
        superseded_path(step) if is_superseded(step, rewinds) else step.path
    ]]  # fmt: skip
    here = {(step.step, step.digest) for step in local_steps(snapshot.kind, folder)}
    return [step for step in moved if (step.step, step.digest) not in here and not os.path.lexists(folder / step.path)]


def _hidden(step: StoredStep) -> str:
    """Where a checkpoint is fetched to, relative to the run."""
    folder, _, name = step.path.rpartition("/")
    hidden = f".{name}.restore-{step.digest[:16]}"
    return f"{folder}/{hidden}" if folder else hidden


def _step_files(target: Path, step: StoredStep) -> list[Wanted]:
    """Files of a checkpoint; none if an earlier restore completed it. Raises OSError."""
    if os.path.lexists(target / step.path):
        return []
    hidden = target / _hidden(step)
    hidden.mkdir(parents=True, exist_ok=True)
    return [Wanted(hidden / file.path, file, step.path) for file in step.files]


def _weight_files(root: Path, snapshot: Snapshot) -> list[Wanted]:
    """Starting weights, unless something is at their place."""
    return [
        Wanted(_hidden_weights(root, group.path) / file.path, file, group.path)
        for group in snapshot.weights
        if not os.path.lexists(root / group.path)
        for file in group.files
    ]


def _hidden_weights(root: Path, path: str) -> Path:
    place = root / path
    return place.with_name(f".{place.name}.restore")


# --------------------------------------------------------------------------------------------------- finishing


def _show_step(target: Path, step: StoredStep, *, is_damaged: bool) -> bool:
    """Make a fetched checkpoint visible; False for one that is damaged in the store."""
    hidden, place = target / _hidden(step), target / step.path
    if is_damaged or os.path.lexists(place):  # the run may have saved one of that name in the meantime
        remove_tree(hidden)
        return not is_damaged
    sync_tree(hidden)
    hidden.rename(place)
    fsync_path(place.parent)
    return True


def _show_weights(root: Path, snapshot: Snapshot, failed: dict[str, StoreError]) -> None:
    for group in snapshot.weights:
        hidden = _hidden_weights(root, group.path)
        if hidden.is_dir() and group.path not in failed and not os.path.lexists(root / group.path):
            sync_tree(hidden)
            hidden.rename(root / group.path)
            fsync_path((root / group.path).parent)


def _add_links(folder: Path, snapshot: Snapshot) -> None:
    """Make the links that are missing; one to a checkpoint only if that is there."""
    for link in snapshot.links:
        path = folder / link.path
        if os.path.lexists(path):
            continue
        if (path.parent / link.target).exists() or not link.target.startswith("step_"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(link.target)


def _finish(target: Path, folder: Path, chosen: StoredSnapshot, source: Destination, *, renamed: bool) -> None:
    """Write links and the record, then rename the directory to its name."""
    snapshot = chosen.manifest
    assert snapshot is not None
    _add_links(target, snapshot)
    record = BackupRecord(snapshot.identity, snapshot.parent)
    if renamed:
        record = BackupRecord(new_identity(snapshot.identity), snapshot.identity)
    else:
        known = record.stores[source.trust.store_id] = StoreRecord(known=snapshot.number)
        known.describe(snapshot, source.name, same_disk=source.trust.same_disk, time=chosen.modified)
    for name in ("control", "training_state", "logs") if snapshot.kind == "training_runs" else ():
        (target / name).mkdir(exist_ok=True)
    record.save(target)
    sync_tree(target)
    if os.path.lexists(folder):
        raise RunDirError(f"{folder} was made in the meantime; restore under another name with --as", code="name_taken")
    target.rename(folder)
    fsync_path(folder.parent)
