"""Archiving: a finished run, or one checkpoint of a run, backed up and read back first.

``archive/completed_runs/RUN`` is the run's directory, moved; its later backups are made there and share the objects of
``training_runs/``. ``archive/important_checkpoints/RUN_step_40`` is a copy, with the run's config and a note.
"""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_train.backup.cleanup import refuse_at_work
from grpo_train.backup.job import OnProgress
from grpo_train.backup.runs import back_up_run
from grpo_train.backup.snapshot import ARCHIVED_CHECKPOINTS, ARCHIVED_RUNS, Home
from grpo_train.backup.take import BackupResult, back_up
from grpo_train.backup.transfer import TRANSFERS
from grpo_train.backup.verify import VerifyResult, verify
from grpo_train.run_dir import RunDir, RunDirError, StatusWriter
from grpo_train.run_dir.errors import prefixed
from grpo_train.run_dir.files import fsync_path, remove_tree, sync_tree
from grpo_train.run_dir.identity import write_note
from grpo_train.run_dir.manifest import problem_of
from grpo_train.run_dir.root import prepare_root
from grpo_train.train.retention import is_within, paths_read

if TYPE_CHECKING:
    from grpo_train.backup.destinations import Destination

_BESIDE = ("launch.json", "config.yaml")
"""Files of the run that are copied beside a checkpoint."""


@dataclass(frozen=True)
class ArchiveResult:
    """Outcome of archiving."""

    path: str
    backup: BackupResult
    verified: VerifyResult

    @property
    def is_whole(self) -> bool:
        return self.verified.is_sound and not self.backup.omitted


def archive_run(
    run: RunDir, to: Destination, *, note: str = "", transfers: int = TRANSFERS, show: OnProgress | None = None
) -> ArchiveResult:
    """Back up a run, read the backup back, and move the run to ``archive/completed_runs``.

    Rerun it after a kill: a run that was moved is backed up where it is now.
    Raises RunDirError: ``run_is_live``, ``in_use``, ``name_taken``, ``not_backed_up``; StoreError, OSError.
    """
    root = prepare_root(run.root)
    target = root / ARCHIVED_RUNS / run.name
    if target.is_dir() and not os.path.lexists(run.path):
        return _finish(root, run.name, to, transfers, show)
    refuse_at_work(run)
    if os.path.lexists(target):
        raise RunDirError(f"{target} exists; rename one of them", code="name_taken")
    with closing(StatusWriter(run.path)):
        if note:
            write_note(run.path, note)
        done = back_up_run(root, "training_runs", run.name, to, transfers=transfers, show=show)
        checked = verify(root, Home("training_runs", run.name, done.identity), to, transfers=transfers, show=show)
        result = ArchiveResult(os.fspath(target), done, checked)
        if not result.is_whole or done.ahead:
            raise RunDirError(
                f"{run.name} is not archived: its backup in {to.name} is not whole; see  grpo-train verify-backup "
                f"{run.name}  and  grpo-train backup --training-run {run.name}",
                code="not_backed_up",
            )
        with prefixed(f"cannot tell whether {run.name} is in use: "):
            in_use = is_within(run.path, paths_read(root))
        if in_use:
            raise RunDirError(f"{run.name} is in use by an evaluation or another run; it is not moved", code="in_use")
        run.path.rename(target)
    fsync_path(target.parent)
    fsync_path(run.path.parent)
    moved = back_up(root, ARCHIVED_RUNS, run.name, to, transfers=transfers, show=show, evaluations=done.evaluations)
    return ArchiveResult(os.fspath(target), moved, checked)


def _finish(root: Path, name: str, to: Destination, transfers: int, show: OnProgress | None) -> ArchiveResult:
    """Back up a run that was moved, and read what was not read yet."""
    done = back_up_run(root, ARCHIVED_RUNS, name, to, transfers=transfers, show=show)
    home = Home(ARCHIVED_RUNS, name, done.identity)
    checked = verify(root, home, to, only_unread=True, transfers=transfers, show=show)
    return ArchiveResult(os.fspath(root / ARCHIVED_RUNS / name), done, checked)


def archive_checkpoint(
    run: RunDir,
    step: int,
    to: Destination,
    *,
    note: str = "",
    transfers: int = TRANSFERS,
    show: OnProgress | None = None,
) -> ArchiveResult:
    """Copy a checkpoint to ``archive/important_checkpoints/RUN_step_N/step_N``, back it up, read the backup back.

    Raises RunDirError (``bad_checkpoint``, ``no_checkpoint``), StoreError, OSError.
    """
    root = prepare_root(run.root)
    checkpoint = run.checkpoint(step, deep=True)
    name = f"{run.name}_step_{step}"
    target = root / ARCHIVED_CHECKPOINTS / name
    if not target.exists():
        staging = target.with_name(f".new-{name}")
        remove_tree(staging)
        shutil.copytree(checkpoint.path, staging / checkpoint.path.name)
        if problem := problem_of(staging / checkpoint.path.name, deep=True):
            remove_tree(staging)
            raise RunDirError(f"the copy of {checkpoint.path} is damaged: {problem}", code="bad_checkpoint")
        for file in _BESIDE:
            if (run.path / file).is_file():
                shutil.copy2(run.path / file, staging / file)
        sync_tree(staging)
        staging.rename(target)
        fsync_path(target.parent)
    if note:
        write_note(target, note)
    done = back_up(root, ARCHIVED_CHECKPOINTS, name, to, transfers=transfers, show=show)
    checked = verify(root, Home(ARCHIVED_CHECKPOINTS, name, done.identity), to, transfers=transfers, show=show)
    return ArchiveResult(os.fspath(target), done, checked)
