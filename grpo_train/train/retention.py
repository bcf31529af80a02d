"""Which checkpoints a run keeps, and how the others go. Torch-free.

Must: a visible ``step_N`` is whole at every moment. So a checkpoint is first renamed to a hidden name, that is made
durable, and only then it is deleted; whatever a kill leaves is cleared by :func:`remove_leftovers`.

Must: no step goes that somebody reads. An evaluation writes what it is going to read into its ``status.json`` and then
looks whether it is there to stay; a removal makes the hidden name, an empty directory, and then looks whether somebody
has announced the step. Each writes before it looks, so at least one sees the other: the removal lets go before it has
touched anything, or the evaluation waits for the removal's end and finds the step gone.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from grpo_train.run_dir import Checkpoint, RunDir, observe
from grpo_train.run_dir.files import fsync_directory, read_json
from grpo_train.run_dir.removal import hidden_name


def prune_checkpoints(run: RunDir, *, keep_last: int, keep_every: int) -> list[int]:
    """Remove older complete checkpoints; returns their steps. Rank 0 calls it after a save.

    Kept are: the newest ``keep_last`` (0: all of them), milestones (multiples of ``keep_every``, 0: none), what
    ``step_latest`` and ``step_final`` point at, what a live evaluation reads or is going to read, and what a run of
    this root started from. Damaged steps and ``superseded/`` are left as they are.

    Never raises OSError: what cannot be removed is told in the event ``prune_failed`` and training goes on.
    """
    if keep_last <= 0:
        return []
    pruned: list[int] = []
    newest = 0
    try:
        complete = [checkpoint for checkpoint in run.checkpoints() if not checkpoint.problem]
        newest = complete[-1].step if complete else 0
        linked = _linked(run)
        for checkpoint in complete[:-keep_last]:
            milestone = keep_every > 0 and checkpoint.step % keep_every == 0
            if milestone or checkpoint.path.name in linked or _is_read(run, checkpoint):
                continue
            if _remove(run, checkpoint):
                pruned.append(checkpoint.step)
    except (OSError, ValueError, TypeError) as error:  # the last two: a status.json that holds something else
        _log(run, "prune_failed", newest, error=f"{type(error).__name__}: {error}")
    if pruned:
        _log(run, "pruned", newest, steps=pruned)
    return pruned


def _remove(run: RunDir, checkpoint: Checkpoint) -> bool:
    """Say that a checkpoint goes, look again who reads it, hide it, delete it. False when somebody does by now."""
    hidden = run.training_state / hidden_name(checkpoint.step)
    hidden.mkdir()
    gone = False
    try:
        if _is_read(run, checkpoint):
            return False
        checkpoint.path.rename(hidden)  # an empty directory is replaced
        gone = True
    finally:
        if not gone:
            hidden.rmdir()
    fsync_directory(run.training_state)
    try:
        shutil.rmtree(hidden)
    except OSError as error:  # NFS keeps what somebody has open; the next remove_leftovers tries again
        _log(run, "prune_failed", checkpoint.step, error=f"{hidden.name}: {error.strerror or error}")
    return True


def _linked(run: RunDir) -> set[str]:
    """Names of the directories that ``step_latest`` and ``step_final`` point at."""
    aliases = [run.training_state / name for name in ("step_latest", "step_final")]
    return {os.path.basename(os.readlink(alias)) for alias in aliases if alias.is_symlink()}


def _is_read(run: RunDir, checkpoint: Checkpoint) -> bool:
    """Whether a live evaluation needs a checkpoint or a part of it, or a run that started from it or lies over it."""
    place = os.path.join(os.path.realpath(run.training_state), checkpoint.path.name)
    return any(path == place or path.startswith(place + os.sep) for path in _places_read(run.root))


def _places_read(root: Path) -> list[str]:
    """Real paths that the live evaluations of a root have announced, and those its runs took their weights from.

    Raises ValueError or TypeError naming the file that does not hold what it should, OSError for one that cannot be
    read: then nobody knows, and nothing may be removed.
    """
    named: list[str] = []
    for file in sorted(root.glob("eval_runs/*/status.json")):
        status = read_json(file) or {}
        try:
            if observe(status).is_live:
                named += [os.fspath(path) for path in status.get("pending", [])]
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error
    for file in sorted(root.glob("training_runs/*/launch.json")):
        named += [str(ckpt)] if (ckpt := (read_json(file) or {}).get("ckpt")) else []
    for file in sorted(root.glob("training_runs/*/config.yaml")):
        try:
            named.append(str(yaml.safe_load(file.read_text(encoding="utf-8"))["model"]["backbone"]))
        except (yaml.YAMLError, TypeError, KeyError) as error:
            raise ValueError(f"{file} is damaged: {error}") from error
    return [os.path.realpath(root / path) for path in named]


def _log(run: RunDir, event: str, step: int, **fields: Any) -> None:
    try:
        run.log_event(event, step=step, **fields)
    except OSError:
        pass  # a full disk must not end the run
