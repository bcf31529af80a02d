"""Evaluations whose ``status.json`` is damaged: listed, named, compared, graded again and backed up all the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.backup.runs import back_up_run
from grpo_train.evaluation.regrade import regrade_evaluations
from grpo_train.evaluation.report.compare import compare_steps
from grpo_train.run_dir import RunDir, list_evaluations
from tests.support.backups import folder_destination
from tests.support.engine import command_here

REASONS = {
    "cut": (b'{"state": "fin', "status.json: invalid JSON"),
    "empty": (b"", "status.json: invalid JSON"),
    "binary": (b"\xff\xfe\xe9", "status.json: invalid UTF-8 at byte 0"),
    "missing": (None, "status.json is missing"),
}


@pytest.mark.parametrize("how", REASONS)
def test_a_damaged_status_hides_no_evaluation(golden: Callable[[str], RunDir], tmp_path: Path, how: str) -> None:
    run = golden("first")
    content, reason = REASONS[how]
    file = run.root / "eval_runs/first_addition/status.json"
    file.unlink() if content is None else file.write_bytes(content)
    (listed,) = list_evaluations(run.root, "first")
    assert (listed["state"], listed["dataset"], len(listed["metrics"])) == ("unreadable", "addition", 2)
    assert listed["problem"].startswith(reason)
    shown = command_here("show", "first", root=run.root).stdout
    assert f"first_addition: its state is unknown: {listed['problem']}; evaluate again to write it" in shown
    assert "step 2 accuracy" in shown
    comparisons, errors = compare_steps(run.root, "first", ["0", "2"])
    assert (len(comparisons), errors) == (1, [])
    done = back_up_run(run.root, "training_runs", "first", folder_destination(tmp_path / "disk"))
    assert [each.name for each in done.evaluations] == ["first_addition"]
    assert [one.name for one in regrade_evaluations(run.root, "first")] == ["step_0", "step_2"]
