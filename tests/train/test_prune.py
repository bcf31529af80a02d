"""``grpo-train prune``: what it lists, removes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from grpo_train.cli import app
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import atomic_symlink
from grpo_train.train.retention import remove_checkpoints, spare_checkpoints
from tests.support.saving import small_checkpoint

CONFIG = "run:\n  keep_last: 0\n  keep_every: 0\nmodel:\n  backbone: tiny\n"


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Steps 1 to 5, of which 2 is the best evaluated one."""
    run = create_run(tmp_path / "root", {}, "one")
    run.config_file.write_text(CONFIG)
    for step in range(1, 6):
        small_checkpoint(run, step)
    folder = run.root / "eval_runs" / "one_addition"
    folder.mkdir(parents=True)
    (folder / "consolidated_metrics.csv").write_text("step,name,status,accuracy\n1,step_1,ok,0.1\n2,step_2,ok,0.4\n")
    (folder / "status.json").write_text(json.dumps({"training_run": "one", "state": "finished"}))
    return run


def prune(run: RunDir, *arguments: str) -> Result:
    return CliRunner().invoke(app, ["prune", "--training-run", run.name, "--root", str(run.root), *arguments])


def steps(run: RunDir) -> list[int]:
    return [checkpoint.step for checkpoint in run.checkpoints()]


def test_without_yes_nothing_is_removed(run: RunDir) -> None:
    done = prune(run)
    assert done.exit_code == 0, done.output
    assert "step_1" in done.output
    assert "kept: best on addition (0.400)" in done.output
    assert "rerun with --yes" in done.output
    assert steps(run) == [1, 2, 3, 4, 5]


def test_yes_removes_what_nothing_needs(run: RunDir) -> None:
    done = prune(run, "--yes", "--json")
    assert json.loads(done.stdout)["removed"] == [1, 3, 4]
    assert steps(run) == [2, 5]
    assert not list(run.training_state.glob(".*"))
    assert [event["steps"] for _, event in run.events() if event["event"] == "pruned"] == [[1, 3, 4]]


def test_named_steps_are_checked(run: RunDir) -> None:
    assert "step_5 is kept: last" in prune(run, "--steps", "1,5", "--yes").output
    assert "no complete checkpoint step_9" in prune(run, "--steps", "9", "--yes").output
    assert "'x' is not a step" in prune(run, "--steps", "x", "--yes").output
    assert steps(run) == [1, 2, 3, 4, 5]
    assert prune(run, "--steps", "1", "--yes").exit_code == 0
    assert steps(run) == [2, 3, 4, 5]


def test_a_damaged_file_prevents_it(run: RunDir) -> None:
    other = create_run(run.root, {}, "two")
    other.config_file.write_text("model: [\n")
    done = prune(run, "--yes")
    assert done.exit_code == 1
    assert "nothing is removed" in done.output
    assert steps(run) == [1, 2, 3, 4, 5]


def test_milestones_stay_where_the_run_keeps_them(run: RunDir) -> None:
    run.config_file.write_text(CONFIG.replace("last: 0", "last: 2").replace("every: 0", "every: 3"))
    spare, kept = spare_checkpoints(run)
    assert [checkpoint.step for checkpoint in spare] == [1, 4]
    assert kept[3] == "milestone (run.keep_every)"


def test_one_that_the_run_pruned_is_passed_over(run: RunDir) -> None:
    spare, _ = spare_checkpoints(run)
    atomic_symlink(run.training_state / "step_final", "step_5")
    (run.training_state / "step_3").rename(run.root / "elsewhere")
    assert remove_checkpoints(run, spare) == [1, 4]
    assert steps(run) == [2, 5]
