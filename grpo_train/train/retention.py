"""Retention: the safe removal of checkpoints that a run does not keep. Torch-free.

Which it keeps: :func:`grpo_train.run_dir.keeping.reasons_to_keep`.

Invariant: a visible ``step_N`` is always complete. So a checkpoint is first renamed to a hidden name, the rename is
made durable, and only then it is deleted. :func:`~grpo_train.run_dir.keeping.remove_hidden` clears what a kill
leaves.

Invariant: a step in use is not removed. An evaluation first announces in its ``status.json`` what it will read, then
checks that the step exists. A removal first creates the hidden name, an empty directory, then checks that nobody has
announced the step. Each writes before it checks, so at least one sees the other: either the removal backs off before it
has touched anything, or the evaluation waits for the removal to end and finds the step gone.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from grpo_train.config.yaml_text import InvalidYaml, section_of
from grpo_train.run_dir import Checkpoint, RunDir
from grpo_train.run_dir.backup_note import digests_in_backup
from grpo_train.run_dir.files import fsync_path
from grpo_train.run_dir.keeping import hidden_name, links_of, paths_in_use, reasons_to_keep
from grpo_train.run_dir.manifest import MANIFEST, sha256
from grpo_train.run_dir.safe_json import Unreadable


def prune_checkpoints(run: RunDir, *, keep_last: int, keep_every: int, only_backed_up: bool = False) -> list[int]:
    """Remove older complete checkpoints; returns their steps. Rank 0 calls it after a save.

    Kept are the newest ``keep_last`` (0: all), milestones (multiples of ``keep_every``, 0: none), the targets of
    ``step_latest`` and ``step_final``, what a live evaluation has announced, and what a run of this root started from.
    Damaged steps and ``superseded/`` are left alone; with ``only_backed_up``, so is what no backup on another disk has.

    Never raises OSError: a failure is logged as the event ``prune_failed`` and training continues.
    """
    if keep_last <= 0:
        return []
    pruned: list[int] = []
    newest = 0
    try:
        complete = [checkpoint for checkpoint in run.checkpoints() if not checkpoint.problem]
        newest = complete[-1].step if complete else 0
        steps, links = [checkpoint.step for checkpoint in complete], links_of(run.training_state)
        stays = reasons_to_keep(steps, links, keep_last=keep_last, keep_every=keep_every)
        held = digests_in_backup(run.path) if only_backed_up else None
        for checkpoint in complete:
            if checkpoint.step in stays or is_read(run, checkpoint):
                continue
            if held is not None and sha256(checkpoint.path / MANIFEST) not in held:
                continue
            if remove_unless_read(run, checkpoint):
                pruned.append(checkpoint.step)
    except (OSError, ValueError, TypeError, Unreadable) as error:  # all but the first: a damaged file
        _log(run, "prune_failed", newest, error=f"{type(error).__name__}: {error}")
    if pruned:
        _log(run, "pruned", newest, steps=pruned)
    return pruned


def remove_unless_read(run: RunDir, checkpoint: Checkpoint) -> bool:
    """Announce the removal, check again for readers, hide and delete. Returns False if the checkpoint is now in use.

    Raises OSError, and Unreadable for a damaged file that may say that it is in use.
    """
    folder = checkpoint.path.parent
    hidden = folder / hidden_name(checkpoint.step)
    hidden.mkdir()
    is_hidden = False
    try:
        if is_read(run, checkpoint):
            return False
        checkpoint.path.rename(hidden)  # replaces the empty directory
        is_hidden = True
    finally:
        if not is_hidden:
            hidden.rmdir()
    fsync_path(folder)
    try:
        shutil.rmtree(hidden)
    except OSError as error:  # NFS keeps open files; the next remove_hidden retries
        _log(run, "prune_failed", checkpoint.step, error=f"{hidden.name}: {error.strerror or error}")
    return True


def is_read(run: RunDir, checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint, or a part of it, is in use by a live evaluation or backup, or as the starting weights of a
    run. Raises as :func:`remove_unless_read`."""
    return is_within(checkpoint.path, paths_read(run.root))


def paths_read(root: Path) -> list[str]:
    """Real paths in use below a root. Raises as :func:`remove_unless_read`."""
    return paths_in_use(root, _backbone_of)


def _backbone_of(text: str) -> str:
    if not isinstance(backbone := section_of(text, "model").get("backbone"), str):
        raise InvalidYaml("'model.backbone' must be a text")
    return backbone


def is_within(folder: Path, paths: Iterable[str]) -> bool:
    """Whether a directory is or contains one of some real paths."""
    real = os.path.join(os.path.realpath(folder.parent), folder.name)
    return any(path == real or path.startswith(real + os.sep) for path in paths)


def _log(run: RunDir, event: str, step: int, **fields: Any) -> None:
    with suppress(OSError):  # a full disk must not end the run
        run.log_event(event, step=step, **fields)
