"""What a snapshot carries forward of its predecessor: every checkpoint and log that is proven to be in the store."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from grpo_train.backup.snapshot import Omitted, Part, Snapshot, StoredFile, StoredStep
from grpo_train.backup.snapshots import StoredRun
from grpo_train.run_dir.files import read_jsonl

EVENTS = "logs/events.jsonl"


def carried_steps(
    stored: StoredRun, previous: Snapshot, here: Sequence[StoredStep], events: Path
) -> tuple[list[StoredStep], list[Omitted]]:
    """Checkpoints of the predecessor that the run no longer has, and those that the store lost.

    One that a resume from an earlier step superseded in the meantime moves to ``superseded/``: restored under its old
    path it would be taken for the newest step of the run.
    """
    found, lost = [], []
    paths = {step.path for step in here}
    present = {(step.step, step.digest) for step in here}
    rewinds = rewinds_since(events, previous)
    for step in previous.steps:
        if (step.step, step.digest) in present:
            continue
        if missing := missing_part(stored, step.files):
            lost.append(Omitted(step.path, "lost", f"{missing.key} {stored.problem_of(missing)} in {stored.store.url}"))
            continue
        moved = step.path in paths or is_superseded(step, rewinds)
        found.append(replace(step, path=superseded_path(step) if moved else step.path, on_box=False))
    return found, lost


def carried_logs(stored: StoredRun, previous: Snapshot, here: Collection[str]) -> list[StoredFile]:
    """Append-only files of the predecessor that the run no longer has."""
    gone = [file for file in previous.files if file.path in previous.log_steps and file.path not in here]
    return [file for file in gone if not missing_part(stored, [file])]


def missing_part(stored: StoredRun, files: Sequence[StoredFile]) -> Part | None:
    """The first object of some files that is not in the store with its size."""
    return next((part for file in files for part in file.parts if stored.problem_of(part)), None)


def is_superseded(step: StoredStep, rewinds: Collection[int]) -> bool:
    """Whether a resume from an earlier step made a checkpoint part of another past."""
    return any(start < step.step for start in rewinds)


def superseded_path(step: StoredStep) -> str:
    """Where a superseded checkpoint belongs."""
    if "superseded/" in step.path:
        return step.path
    folder, _, name = step.path.rpartition("/")
    return posixpath.join(folder, "superseded", step.digest[:8], name)


def rewinds_since(events: Path, previous: Snapshot) -> list[int]:
    """Steps that a run was resumed from since a snapshot."""
    known = next((file.size for file in previous.files if file.path == EVENTS), 0)
    rows = [row for start, row in read_jsonl(events) if start >= known and row.get("event") == "resumed"]
    return [row["from_step"] for row in rows if type(row.get("from_step")) is int]
