"""Taking a snapshot of one directory of a root, of a live run too."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.backup.carry import carried_logs, carried_steps, missing_part
from grpo_train.backup.collect import Collection as Contents
from grpo_train.backup.collect import LocalFile, LocalStep, collect, last_step
from grpo_train.backup.commit import claim_number, commit, release, remove_unfinished
from grpo_train.backup.job import Job, OnProgress, working_on
from grpo_train.backup.layout import (
    ARCHIVED_RUNS,
    Home,
    digest_of_list,
    file_key,
    segment_key,
    step_key,
    weights_prefix,
)
from grpo_train.backup.lineage import Lineage, find_lineage
from grpo_train.backup.logs import LogPlan, plan_log
from grpo_train.backup.needs import LocalWeights, Needs, needs_of
from grpo_train.backup.record import Record, read_record
from grpo_train.backup.snapshot import Link, Omitted, Part, Snapshot, StoredFile, StoredStep, Weights
from grpo_train.backup.store import Piece, StoreError
from grpo_train.backup.upload import TRANSFERS, Sent, Upload, send
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json, utc_now
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.removal import exists_after_removal
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, open_regular
from grpo_train.run_dir.status import observe
from grpo_train.run_dir.version import VERSION

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination

_IN_MEMORY = 8 << 20
"""A smaller file is hashed and sent from memory: a live run may replace it in between."""
_STALE_S = 7 * 86_400.0
"""Age of an unfinished upload that no backup will continue."""
_TRIES = 5
"""Scans of a run that is rewound while it is read."""


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


@dataclass
class _Plan:
    """A snapshot and the objects that it needs."""

    snapshot: Snapshot
    uploads: list[Upload]


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
        plan = _planned(root, folder, lineage, record, steps, job)
        plan.snapshot = replace(plan.snapshot, evaluations=tuple(f"{e.name}--{e.identity}" for e in evaluations))
        done = _dry(lineage, plan) if dry_run else _stored(folder, lineage, plan, record, to, transfers, job)
        return replace(done, destination=to.name, ahead=lineage.ahead, evaluations=tuple(evaluations))


def _stored(
    folder: Path, lineage: Lineage, plan: _Plan, record: Record, to: Destination, transfers: int, job: Job
) -> BackupResult:
    known = record.of(to.trust.store_id)
    stored, previous = lineage.stored, lineage.previous

    def save() -> None:
        try:
            record.save(folder)
        except OSError:
            pass  # a full or read-only disk: the next backup compares the run with the store

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
        snapshot = _without(plan.snapshot, previous.manifest if previous else None, sent)
        job.update(phase="proving", what="manifest")
        if before and _content(before) == _content(snapshot):  # all that was new could not be sent
            release(stored, known, save)
            return _result(replace(snapshot, number=before.number), sent, is_new=False)
        all_read_back = not to.trust.computes_sha256 and (not previous or known.read_back >= previous.number)
        done = commit(stored, snapshot, known, save)
    except (UserError, OSError):
        with suppress(UserError, OSError):
            remove_unfinished(stored, known)
            save()
        raise
    if all_read_back:  # this store's proof is to read an object back
        known.read_back = done.number
    known.describe(done, to.name, same_disk=to.trust.same_disk, time=to.store.now())
    save()
    to.store.abort_stale_uploads(stored.home.prefix, _STALE_S)
    return _result(done, sent, is_new=True)


def _dry(lineage: Lineage, plan: _Plan) -> BackupResult:
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


# ------------------------------------------------------------------------------------------------------- planning


def _planned(root: Path, folder: Path, lineage: Lineage, record: Record, steps: str, job: Job) -> _Plan:
    """A consistent view of a directory: no checkpoint moved while logs and links were read."""
    previous = lineage.previous.manifest if lineage.previous else None
    stored_steps = {  # not read, so pruning need not wait for them
        (step.step, step.digest)
        for step in (previous.steps if previous else ())
        if not missing_part(lineage.stored, step.files)
    }
    for _ in range(_TRIES):
        contents = collect(lineage.stored.home.kind, folder)
        contents.steps = chosen_steps(contents.steps, steps, folder)
        read = [step for step in contents.steps if (step.step, step.digest) not in stored_steps]
        job.announce(os.path.relpath(folder / step.path, root) for step in read)
        gone = {step.path for step in read if not exists_after_removal(folder / step.path)}
        contents.steps = [step for step in contents.steps if step.path not in gone]
        plan = _plan(folder, lineage, record, contents)
        if all((folder / step.path).is_dir() for step in contents.steps):
            return plan
    raise RunDirError(f"{folder.name} changed while it was read; rerun the backup", code="changed")


def chosen_steps(found: list[LocalStep], which: str, folder: Path) -> list[LocalStep]:
    """The checkpoints of ``--steps``. Raises RunDirError (``no_checkpoint``)."""
    if which == "all":
        return found
    current = [step for step in found if "superseded/" not in step.path]
    numbers = []
    for word in which.split(","):
        if word.isascii() and word.isdecimal():
            numbers.append(int(word))
        elif word in ("latest", "final") and (folder / "training_state").is_dir():
            numbers.append(RunDir(folder).checkpoint(word).step)
        else:
            raise RunDirError(f"--steps {which}: use all, latest, final, or steps such as 10,20", code="no_checkpoint")
    chosen = [step for step in current if step.step in numbers]
    if missing := sorted(set(numbers) - {step.step for step in chosen}):
        steps = ", ".join(str(step.step) for step in current)
        raise RunDirError(f"{folder.name} has no complete step_{missing[0]} (complete: {steps})", code="no_checkpoint")
    return chosen


def _plan(folder: Path, lineage: Lineage, record: Record, contents: Contents) -> _Plan:
    stored = lineage.stored
    home, previous = stored.home, lineage.previous.manifest if lineage.previous else None
    uploads: list[Upload] = []
    steps = [_stored_step(home, folder, step, previous, uploads) for step in contents.steps]
    state, is_live, training_run = _state(home.kind, folder)
    files: list[StoredFile] = []
    log_steps: dict[str, int] = {}
    omitted = list(contents.omitted)
    for path in contents.logs:
        try:
            plan = _plan_log(home, folder, path, previous, is_live=is_live)
        except (OSError, Unreadable) as error:
            omitted.append(Omitted(path, "unreadable", str(error)))
            continue
        known = _file_of(previous, path)
        replaced = (*(known.replaced if known else ()), *plan.dropped)
        if plan.dropped:
            lines = "bytes that an earlier snapshot holds are no longer in the file; the store keeps both"
            omitted.append(Omitted(path, "log_changed", f"{sum(p.size for p in plan.dropped)} {lines}"))
        uploads += [Upload(part, piece, path) for part, piece in plan.added]
        files.append(StoredFile(path, plan.mode, (*plan.kept, *(part for part, _ in plan.added)), replaced))
        log_steps[path] = last_step(plan.last_line)
    for path in contents.files:
        try:
            files.append(_small_file(home, folder, path, uploads))
        except FileNotFoundError:
            continue  # replaced or removed in the meantime
        except (OSError, Unreadable, StoreError) as error:
            omitted.append(Omitted(path, "unreadable", str(error)))
    if previous:
        gone, lost = carried_steps(stored, previous, steps, folder / "logs" / "events.jsonl")
        logs = carried_logs(stored, previous, contents.logs)
        log_steps |= {file.path: previous.log_steps[file.path] for file in logs}
        steps, files, omitted = [*steps, *gone], [*files, *logs], [*omitted, *lost]
    digests = {step.digest for step in steps}
    needs = needs_of(RunDir(folder), record) if home.kind in ("training_runs", ARCHIVED_RUNS) else Needs()
    omitted += [Omitted(path, "weights_missing", f"starting weights: {reason}") for path, reason in needs.missing]
    snapshot = Snapshot(
        home.kind, home.name, home.identity, 0, utc_now(), socket.gethostname(), VERSION, state, is_live,
        parent=record.parent, training_run=training_run, steps=tuple(steps), files=tuple(files),
        links=_links(contents.links, steps), log_steps=log_steps, hub=needs.hub, data=needs.data,
        weights=tuple(_stored_weights(each, uploads) for each in needs.weights), omitted=tuple(omitted),
        dropped=tuple(each for each in (previous.dropped if previous else ()) if each not in digests),
    )  # fmt: skip
    return _Plan(snapshot, uploads)


def _plan_log(home: Home, folder: Path, path: str, previous: Snapshot | None, *, is_live: bool) -> LogPlan:
    def key(start: int, end: int, digest: str) -> str:
        return segment_key(home, path, start, end, digest)

    return plan_log(folder / path, _file_of(previous, path), key, whole_lines=is_live and path.startswith("logs/"))


def _stored_step(
    home: Home, folder: Path, step: LocalStep, previous: Snapshot | None, uploads: list[Upload]
) -> StoredStep:
    """A checkpoint, under the keys that the predecessor has for it."""
    known = previous.steps if previous else ()
    same = next((each.files for each in known if (each.step, each.digest) == (step.step, step.digest)), ())
    keys = {file.path: file.parts[0].key for file in same}

    def key(file: LocalFile) -> str:
        return keys.get(file.path) or step_key(home, step.step, step.digest, file.path)

    files = _stored_files(folder / step.path, step.files, key, step.path, uploads)
    return StoredStep(step.step, step.digest, step.path, True, files)


def _stored_weights(found: LocalWeights, uploads: list[Upload]) -> Weights:
    digest = digest_of_list({file.path: (file.size, file.sha256) for file in found.files})
    prefix = weights_prefix(found.folder.name, digest)
    files = _stored_files(found.folder, found.files, lambda file: prefix + file.path, found.path, uploads)
    return Weights(found.path, found.source, files)


def _stored_files(
    folder: Path, files: Sequence[LocalFile], key: Callable[[LocalFile], str], owner: str, uploads: list[Upload]
) -> tuple[StoredFile, ...]:
    """Files whose hashes are known before they are read."""
    found = []
    for file in files:
        part = Part(key(file), file.size, file.sha256)
        uploads.append(Upload(part, Piece(folder / file.path, 0, file.size, file.sha256), owner))
        found.append(StoredFile(file.path, file.mode, (part,)))
    return tuple(found)


def _small_file(home: Home, folder: Path, path: str, uploads: list[Upload]) -> StoredFile:
    """Raises OSError, Unreadable, StoreError."""
    source: Piece | bytes
    with open_regular(folder / path) as file:
        facts = os.fstat(file.fileno())
        data = file.read(_IN_MEMORY + 1)
    if len(data) <= _IN_MEMORY:
        source, size, digest = data, len(data), hashlib.sha256(data).hexdigest()
    else:
        size, digest = facts.st_size, sha256(folder / path)
        source = Piece(folder / path, 0, size, digest)
    part = Part(file_key(home, path, digest), size, digest)
    uploads.append(Upload(part, source, path))
    return StoredFile(path, facts.st_mode & 0o777, (part,))


def _links(links: Sequence[Link], steps: Sequence[StoredStep]) -> tuple[Link, ...]:
    """Links of which the target is in the snapshot; ``step_latest`` falls back to the newest checkpoint."""
    here = {step.path: step.step for step in steps if "superseded/" not in step.path}
    found = []
    for link in links:
        folder, _, name = link.path.rpartition("/")
        target = f"{folder}/{link.target}" if folder else link.target
        if name in ("step_latest", "step_final") and target not in here:
            near = max((path for path in here if path.startswith(f"{folder}/")), key=here.__getitem__, default="")
            if name == "step_final" or not near:
                continue
            link = Link(link.path, near.rpartition("/")[2])
        found.append(link)
    return tuple(found)


def _state(kind: str, folder: Path) -> tuple[str, bool, str]:
    """State, whether it is live, and the run of an evaluation."""
    if kind in ("training_runs", ARCHIVED_RUNS):
        observed = RunDir(folder).observed_state()
        return observed.state, observed.is_live, ""
    status = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True)
    if status is None:
        return "", False, ""
    observed = observe(status)
    return observed.state, observed.is_live, str(status.get("training_run", ""))


def _file_of(snapshot: Snapshot | None, path: str) -> StoredFile | None:
    return next((file for file in snapshot.files if file.path == path), None) if snapshot else None


# ------------------------------------------------------------------------------------------------- what failed


def _without(snapshot: Snapshot, previous: Snapshot | None, sent: Sent) -> Snapshot:
    """A snapshot without what could not be sent; each is named."""
    if not sent.failed:
        return snapshot
    files = [file for file in snapshot.files if file.path not in sent.failed]
    for path in sent.failed:
        if (known := _file_of(previous, path)) and previous and path in previous.log_steps:
            files.append(known)
    steps = [step for step in snapshot.steps if not (step.on_box and step.path in sent.failed)]
    return replace(
        snapshot,
        files=tuple(files),
        steps=tuple(steps),
        links=_links(snapshot.links, steps),
        log_steps={path: step for path, step in snapshot.log_steps.items() if _has(files, path)},
        weights=tuple(each for each in snapshot.weights if each.path not in sent.failed),
        omitted=(*snapshot.omitted, *(_omitted(path, error) for path, error in sent.failed.items())),
    )


def _has(files: Collection[StoredFile], path: str) -> bool:
    return any(file.path == path for file in files)


def _omitted(path: str, error: StoreError) -> Omitted:
    return Omitted(path, "damaged_here" if error.code == "changed" else "not_stored", str(error))
