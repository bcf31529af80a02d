"""Resuming a run: refusing a live one, and making a checkpoint the one to continue from. Torch-free."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.processes import find_by_run_id, run_id_of
from grpo_train.run_dir.slurm_job import is_earlier_attempt
from grpo_train.supervisor.workflow import StageRow, confirmation_of, edits, remaining


@dataclass(frozen=True)
class ResumePlan:
    """What a resume would do."""

    run: str
    host: str
    step: int
    """Step that it continues from."""
    total_steps: int
    left: list[str]
    """Stages that would run, in order."""
    edits: list[StageRow]
    """All stages, if the workflow was edited since the last start; else []."""
    confirmation: str
    """Digest of the edits that a user has to confirm; "" = no confirmation is needed."""


def plan_resume(run: RunDir, config: Config, step: int) -> ResumePlan:
    """What a resume from a checkpoint with a config would do. Raises RunDirError if nothing is left to do."""
    left, rows = remaining(run, config, step), edits(run, config)
    require_work(run, step, config.run.total_steps, stages_left=bool(left))
    names = [stage.name for stage in left]
    return ResumePlan(run.name, socket.gethostname(), step, config.run.total_steps, names, rows, confirmation_of(rows))


def require_work(run: RunDir, step: int, total: int, *, stages_left: bool) -> None:
    """Raise RunDirError if a resume from a step would have nothing to do."""
    if step >= total and not stages_left:
        raise RunDirError(
            f"{run.name} has already reached step {step} of {total}; train further with --additional-steps N"
        )


def refuse_live(run: RunDir) -> None:
    """Raise RunDirError (``run_is_live``) if the run or any of its processes is live."""
    observed = run.observed_state()
    if observed.is_live and not is_earlier_attempt(run.read_status() or {}):
        where = f" on {observed.host}" if observed.host else ""
        raise RunDirError(
            f"{run.name} is {observed.state}{where}; stop it first (grpo-train stop --training-run {run.name})",
            code="run_is_live",
        )
    if left := find_by_run_id(run_id_of(run.path)):
        raise RunDirError(
            f"processes of {run.name} are still running: {left} "
            f"(end them with  grpo-train stop --now --training-run {run.name})",
            code="run_is_live",
        )


def prepare_resume(
    run: RunDir,
    which: str,
    total: int,
    changes: Mapping[str, tuple[Any, Any]] = MappingProxyType({}),
    *,
    stages_left: bool = False,
) -> int:
    """Make a checkpoint the one to continue from; returns its step.

    Later checkpoints are set aside and later log lines superseded; ``changes`` (key to old and new value) are logged.
    A run that ended before its first save starts again from step 0. The caller holds the status lock. Raises
    RunDirError, before anything is changed, if the checkpoint is missing or damaged (every checksum is verified) or has
    already reached step ``total`` without stages after training that are left.
    """
    never_saved = which == "latest" and has_never_saved(run)
    step = 0 if never_saved else run.checkpoint(which, deep=True).step
    require_work(run, step, total, stages_left=stages_left)
    moved = [] if never_saved or (stages_left and step == run.newest_step()) else run.rewind(step)
    superseded = run.supersede_after(step)
    run.log_event(
        "resumed",
        step=step,
        from_step=step,
        changes={key: list(values) for key, values in changes.items()},  # first: what a reader of the log looks for
        moved=moved,
        superseded=superseded,
    )
    return step


def has_never_saved(run: RunDir) -> bool:
    """Whether a run ended before its first checkpoint (one whose checkpoints are only in a backup has saved)."""
    return run.resume_point() is None and not any(event.get("event") == "saved" for _, event in run.events())
