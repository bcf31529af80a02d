"""Retention while an evaluation reads: whoever comes first, a step in use stays."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import Checkpoint, RunDir, StatusWriter, create_run, problem_of
from grpo_train.run_dir.keeping import exists_after_removal
from grpo_train.train import retention
from grpo_train.train.retention import prune_checkpoints
from tests.support.patience import PATIENCE
from tests.support.saving import small_checkpoint
from tests.train.test_retention import events_of


def _evaluate_repeatedly(path: Path, until: Path, result: Any) -> None:
    """Announce the oldest step, check that it exists, and read it: it must stay to the end."""
    run = RunDir(path)
    folder = run.root / "eval_runs" / "one_addition"
    folder.mkdir(parents=True)
    status = StatusWriter(folder, training_run=run.name)
    read, vanished, broken = 0, 0, []
    while not until.exists():
        steps = run.checkpoints()
        if not steps:
            continue
        place = steps[0].path
        status.update(state="evaluating", pending=[os.path.relpath(place, run.root)])
        if not exists_after_removal(place):
            vanished += 1
            continue
        for _ in range(3):
            if problem := problem_of(place, deep=True):
                broken.append(f"{place.name}: {problem}")
        read += 1
        status.update(pending=[])
    result.put((read, vanished, broken))


def test_no_race_removes_a_step_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "root", {}, "one")
    is_read = retention.is_read

    def check_slowly(run: RunDir, checkpoint: Checkpoint) -> bool:
        answer = is_read(run, checkpoint)
        time.sleep(0.002)  # widens the window between check and removal
        return answer

    monkeypatch.setattr(retention, "is_read", check_slowly)
    until = tmp_path / "until"
    context = multiprocessing.get_context("fork")
    result = context.Queue()
    reader = context.Process(target=_evaluate_repeatedly, args=(run.path, until, result))
    reader.start()
    pruned: list[int] = []
    for step in range(1, 250):
        small_checkpoint(run, step)
        pruned += prune_checkpoints(run, keep_last=1, keep_every=0)
    until.write_text("")
    read, vanished, broken = result.get(timeout=PATIENCE * 30)
    reader.join()
    print(f"{len(pruned)} pruned, {read} read, {vanished} vanished before they were read")
    assert broken == []
    assert read > 3
    assert len(pruned) > 100
    assert not events_of(run, "prune_failed")
