"""What the next snapshot of a directory holds, and the objects that it needs."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from grpo_train.backup.collect import Collection as Contents
from grpo_train.backup.collect import LocalFile, LocalStep, collect, is_unchanged, last_step
from grpo_train.backup.job import CommandProgress
from grpo_train.backup.logs import LogPlan, plan_log
from grpo_train.backup.needs import BackupNeeds, LocalWeights, needs_of
from grpo_train.backup.record import BackupRecord, Lineage, carried_logs, carried_steps, missing_part
from grpo_train.backup.snapshot import (
    ARCHIVED_RUNS,
    Home,
    Omitted,
    Part,
    Snapshot,
    SnapshotLink,
    StartingWeights,
    StoredFile,
    StoredStep,
    digest_of_list,
    file_key,
    segment_key,
    step_key,
    weights_prefix,
)
from grpo_train.backup.store import FilePiece, StoreError
from grpo_train.backup.transfer import Sent, Upload
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.evaluations import read_evaluation
from grpo_train.run_dir.files import utc_now
from grpo_train.run_dir.keeping import exists_after_removal
from grpo_train.run_dir.manifest import sha256
from grpo_train.run_dir.safe_json import Unreadable, open_regular
from grpo_train.run_dir.status import read_state
from grpo_train.run_dir.version import VERSION

_IN_MEMORY = 8 << 20
"""A smaller file is hashed and sent from memory: a live run may replace it in between."""
_TRIES = 5
"""Scans of a run that is rewound while it is read."""


@dataclass
class Plan:
    """A snapshot and the objects that it needs."""

    snapshot: Snapshot
    uploads: list[Upload]


def planned(root: Path, folder: Path, lineage: Lineage, record: BackupRecord, steps: str, job: CommandProgress) -> Plan:
    """A consistent view of a directory: no checkpoint moved or changed while logs and links were read."""
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
        if all(is_unchanged(folder, step) for step in contents.steps):
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


def _plan(folder: Path, lineage: Lineage, record: BackupRecord, contents: Contents) -> Plan:
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
        except (OSError, Unreadable) as error:  # replaced by a directory or removed since it was listed
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
        except (OSError, Unreadable, StoreError) as error:  # another account's; a failing disk
            omitted.append(Omitted(path, "unreadable", str(error)))
    if previous:
        gone, lost = carried_steps(stored, previous, steps, folder / "logs" / "events.jsonl")
        logs = carried_logs(stored, previous, contents.logs)
        log_steps |= {file.path: previous.log_steps[file.path] for file in logs}
        steps, files, omitted = [*steps, *gone], [*files, *logs], [*omitted, *lost]
    digests = {step.digest for step in steps}
    needs = needs_of(RunDir(folder), record) if home.kind in ("training_runs", ARCHIVED_RUNS) else BackupNeeds()
    omitted += [Omitted(path, "weights_missing", f"starting weights: {reason}") for path, reason in needs.missing]
    snapshot = Snapshot(
        home.kind, home.name, home.identity, 0, utc_now(), socket.gethostname(), VERSION, state, is_live,
        parent=record.parent, training_run=training_run, steps=tuple(steps), files=tuple(files),
        links=_links(contents.links, steps), log_steps=log_steps, hub=needs.hub, data=needs.data,
        weights=tuple(_stored_weights(each, uploads) for each in needs.weights), omitted=tuple(omitted),
        dropped=tuple(each for each in (previous.dropped if previous else ()) if each not in digests),
    )  # fmt: skip
    return Plan(snapshot, uploads)


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


def _stored_weights(found: LocalWeights, uploads: list[Upload]) -> StartingWeights:
    digest = digest_of_list({file.path: (file.size, file.sha256) for file in found.files})
    prefix = weights_prefix(found.folder.name, digest)
    files = _stored_files(found.folder, found.files, lambda file: prefix + file.path, found.path, uploads)
    return StartingWeights(found.path, found.source, files)


def _stored_files(
    folder: Path, files: Sequence[LocalFile], key: Callable[[LocalFile], str], owner: str, uploads: list[Upload]
) -> tuple[StoredFile, ...]:
    """Files whose hashes are known before they are read."""
    found = []
    for file in files:
        part = Part(key(file), file.size, file.sha256)
        uploads.append(Upload(part, FilePiece(folder / file.path, 0, file.size, file.sha256), owner))
        found.append(StoredFile(file.path, file.mode, (part,)))
    return tuple(found)


def _small_file(home: Home, folder: Path, path: str, uploads: list[Upload]) -> StoredFile:
    """Raises OSError, Unreadable, StoreError."""
    source: FilePiece | bytes
    with open_regular(folder / path) as file:
        facts = os.fstat(file.fileno())
        data = file.read(_IN_MEMORY + 1)
    if len(data) <= _IN_MEMORY:
        source, size, digest = data, len(data), hashlib.sha256(data).hexdigest()
    else:
        size, digest = facts.st_size, sha256(folder / path)
        source = FilePiece(folder / path, 0, size, digest)
    part = Part(file_key(home, path, digest), size, digest)
    uploads.append(Upload(part, source, path))
    return StoredFile(path, facts.st_mode & 0o777, (part,))


def _links(links: Sequence[SnapshotLink], steps: Sequence[StoredStep]) -> tuple[SnapshotLink, ...]:
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
            link = SnapshotLink(link.path, near.rpartition("/")[2])
        found.append(link)
    return tuple(found)


def _state(kind: str, folder: Path) -> tuple[str, bool, str]:
    """State, whether it is live, and the run of an evaluation."""
    if kind in ("training_runs", ARCHIVED_RUNS):
        observed = RunDir(folder).observed_state()
        return observed.state, observed.is_live, ""
    if kind == "eval_runs":
        status, observed, _ = read_evaluation(folder)
        return observed.state, observed.is_live, str(status.get("training_run", ""))
    found, observed = read_state(folder)
    return ("", False, "") if found is None else (observed.state, observed.is_live, "")


def _file_of(snapshot: Snapshot | None, path: str) -> StoredFile | None:
    return next((file for file in snapshot.files if file.path == path), None) if snapshot else None


def without_unsent(snapshot: Snapshot, previous: Snapshot | None, sent: Sent) -> Snapshot:
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
