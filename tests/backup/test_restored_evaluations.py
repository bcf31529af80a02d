"""An evaluation that is here is completed from its backup; what is intact here stays."""

from __future__ import annotations

import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest

from grpo_train.backup.destinations import Destination
from grpo_train.backup.peek import look
from grpo_train.backup.restore import RestoreResult
from grpo_train.backup.runs import back_up_run, restore_run
from grpo_train.backup.snapshots import stored_evaluations
from grpo_train.evaluation.report.step import write_step
from grpo_train.evaluation.report.table import consolidate
from grpo_train.run_dir import RunDir, StatusWriter, list_evaluations, read_table
from tests.support.backups import (
    backup,
    bytes_of,
    folder_destination,
    home_of,
    make_evaluation,
    make_run,
    newest,
    set_state,
)  # fmt: skip

FACTS = {"checkpoint": "", "task": {}, "eval": {}, "seed": 0, "problems_in_split": 4}


def evaluate(run: RunDir, step: int, right: int = 1) -> Path:
    """Results of two problems, of which the first ``right`` are solved."""
    folder = run.root / "eval_runs" / "one_addition"
    rows = [
        {
            "step": step, "index": index, "sample": 0, "question": "1+1", "gold": "2", "completion": "2", "seed": index,
            "length": 3, "truncated": False, "answer": "2", "correct": index < right, "flexible": index < right,
            "formatted": True, "reason": "", "score": 1.0, "metrics": {}, "facts": {},
        }
        for index in range(2)
    ]  # fmt: skip
    settings = {
        "step": step, "name": f"step_{step}", "dataset": "addition", "subset_frac": 1.0, "temperature": 0.0,
        "max_completion_length": 8, "batch_size": 2, "split": "test", "num_samples": 1, "top_p": 1.0,
    }  # fmt: skip
    place = folder / f"step_{step}_addition"
    write_step(place, rows, settings, {"samples": {"problems": "x"}, "grading": "y"}, FACTS, {})
    consolidate(folder, "addition", [])
    return place


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run of which steps 10 and 20 are evaluated."""
    run = make_run(tmp_path / "root", "one", 10, 20)
    status = make_evaluation(run.root, "one") / "status.json"
    status.write_text(status.read_text().replace("{", '{"dataset": "addition", ', 1))
    for step in (10, 20):
        evaluate(run, step)
    return run


@pytest.fixture
def to(run: RunDir, tmp_path: Path) -> Destination:
    to = folder_destination(tmp_path / "disk")
    back_up_run(run.root, "training_runs", "one", to)
    return to


def tree(run: RunDir) -> Path:
    return run.root / "eval_runs" / "one_addition"


def restored(run: RunDir, to: Destination) -> RestoreResult:
    return restore_run(run.root, "one", to)


def test_missing_results_are_added(run: RunDir, to: Destination) -> None:
    before = bytes_of(tree(run))
    shutil.rmtree(tree(run) / "step_20_addition")
    consolidate(tree(run), "addition", [])
    assert [row["step"] for row in read_table(tree(run))] == ["10"]
    result = restored(run, to)
    assert result.omitted == ()
    assert [(each.name, each.steps, each.is_new) for each in result.evaluations] == [("one_addition", (20,), False)]
    assert bytes_of(tree(run)) == before, "table and comparisons, too"
    assert restored(run, to).evaluations == (), "nothing is missing any more"


def test_intact_results_here_stay(run: RunDir, to: Destination) -> None:
    """Results that the backup lacks, and others of a step that it has."""
    evaluate(run, 30)
    shutil.rmtree(tree(run) / "step_20_addition")
    mine = bytes_of(evaluate(run, 20, right=2))
    shutil.rmtree(tree(run) / "step_10_addition")
    (result,) = restored(run, to).evaluations
    assert result.steps == (10,)
    rows = {row["step"]: float(row["accuracy"]) for row in read_table(tree(run))}
    assert rows == {"10": 0.5, "20": 1.0, "30": 0.5}
    now = bytes_of(tree(run) / "step_20_addition")
    assert now["completions.jsonl"] == mine["completions.jsonl"]


@pytest.mark.parametrize("damage", ["cut", "no_summary", "begun"])
def test_unfinished_results_are_replaced(damage: str, run: RunDir, to: Destination) -> None:
    before, step = bytes_of(tree(run)), tree(run) / "step_20_addition"
    if damage == "cut":
        os.truncate(step / "completions.jsonl", 40)
    elif damage == "no_summary":
        (step / "summary.json").unlink()
    else:
        for path in tree(run).rglob("*"):
            if path.is_file() and path.name != "status.json":
                path.unlink()
    restored(run, to)
    assert bytes_of(tree(run)) == before
    assert not list(tree(run).glob(".*.old"))


def test_evaluations_of_others_are_named(run: RunDir, to: Destination) -> None:
    shutil.rmtree(tree(run))
    make_evaluation(run.root, "two").rename(tree(run))
    (omitted,) = restored(run, to).omitted
    assert (omitted.path, omitted.code) == ("eval_runs/one_addition", "name_taken")
    assert not (tree(run) / "step_20_addition").exists()


def test_evaluations_at_work_are_named(run: RunDir, to: Destination) -> None:
    shutil.rmtree(tree(run) / "step_20_addition")
    with closing(StatusWriter(tree(run))):
        (omitted,) = restored(run, to).omitted
    assert omitted.code == "run_is_live"
    assert not (tree(run) / "step_20_addition").exists()


def test_a_snapshot_without_evaluations_is_that_of_an_older_cleanup(
    run: RunDir, to: Destination, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr("grpo_train.backup.take._named", lambda *_: ())
        set_state(run, "finished")
        assert backup(run, to).snapshot == 2
    assert not newest(run, to).evaluations
    (home,) = stored_evaluations(to.store, home_of(run))
    assert home.name == "one_addition"
    with look(to.store, home_of(run), newest(run, to)) as found:
        assert [row["name"] for row in list_evaluations(found.run.root, "one")] == ["one_addition"]
    (evaluation,) = restore_run(tmp_path / "other", "one", to).evaluations
    assert evaluation.name == "one_addition"
    set_state(run, "stopped")
    assert back_up_run(run.root, "training_runs", "one", to).snapshot == 3
    assert newest(run, to).evaluations, "and is repaired by the next"
