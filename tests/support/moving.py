"""A run that moves: trained, backed up, its root removed, restored under another root, resumed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from grpo_train.backup.runs import back_up_run, restore_run
from grpo_train.run_dir import RunDir
from tests.support.backups import folder_destination
from tests.support.engine import assert_same_run, resume_here, run_of, train_here

TOTAL = 6
HALF = 3


def resume_until(run: RunDir, which: str, until: int) -> None:
    """Resume a run in this process and stop it at a step."""
    from grpo_train.supervisor.resume import prepare_resume
    from grpo_train.train.worker import main

    prepare_resume(run, which, TOTAL)
    assert main(["--run-dir", str(run.path), "--until", str(until)]) == 0


def assert_moves_bit_for_bit(
    straight: RunDir,
    root: Path,
    cfg: Path,
    tmp_path: Path,
    *options: str,
    before: Callable[[RunDir], None] | None = None,
) -> RunDir:
    """Train half of a run in ``root``, move it, resume it, and compare it with the one that never stopped.

    ``before`` changes the run before it is backed up. ``root`` is removed. Returns the resumed run.
    """
    run = train_here(root, cfg, "moved", "--until", str(HALF), *options)
    if before:
        before(run)
    disk = folder_destination(tmp_path / "disk")
    result = back_up_run(root, "training_runs", "moved", disk)
    assert result.omitted == ()
    shutil.rmtree(root)
    elsewhere = tmp_path / "another" / "root"
    assert restore_run(elsewhere, "moved", disk).omitted == ()
    there = run_of(elsewhere, "moved")
    resume_here(there, total=TOTAL)
    assert_same_run(straight, there, TOTAL)
    return there
