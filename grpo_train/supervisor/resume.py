"""Resuming a run: refusing a live one, and making a checkpoint the one to continue from. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from grpo_train.run_dir import RunDir, RunDirError
from grpo_train.run_dir.processes import find_by_run_id, run_id_of


def refuse_live(run: RunDir) -> None:
    """Raise RunDirError (``run_is_live``) if the run or any of its processes is live."""
    observed = run.observed_state()
    if observed.is_live:
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
    if step >= total and not stages_left:
        raise RunDirError(
            f"{run.name} has already reached step {step} of {total}; train further with --additional-steps N"
        )
    moved = [] if never_saved or (stages_left and step == run.newest_step()) else run.rewind(step)
    superseded = run.supersede_after(step)
    run.log_event(
        "resumed",
        step=step,
        from_step=step,
        superseded=superseded,
        moved=moved,
        changes={key: list(values) for key, values in changes.items()},
    )
    return step


def has_never_saved(run: RunDir) -> bool:
    """Whether a run ended before its first checkpoint (one whose checkpoints are only in a backup has saved)."""
    return run.resume_point() is None and not any(event.get("event") == "saved" for _, event in run.events())
