"""Results on disk: damage is seen and named, what other settings made is kept, a kill between two renames heals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.evaluation.plan import EvalError, EvalRequest, make_plan
from grpo_train.evaluation.regrade import regrade
from grpo_train.evaluation.report.compare import steps_compared
from grpo_train.evaluation.results.stored import SUPERSEDED, read_rows, restore_torn
from grpo_train.run_dir import TABLE, RunDir, list_evaluations, read_table
from grpo_train.run_dir.files import read_json
from tests.support.evaluating import (
    SAMPLED,
    ChildrenHere,
    evaluate_here,
    evaluate_until,
    files_of,
    generated,
    partial_of,
    step_of,
)


def torn_completions(place: Path) -> None:
    file = place / "completions.jsonl"
    file.write_bytes(file.read_bytes()[:-500])


def lost_lines(place: Path) -> None:
    file = place / "completions.jsonl"
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:5]))


def no_completions(place: Path) -> None:
    (place / "completions.jsonl").unlink()


def torn_summary(place: Path) -> None:
    file = place / "summary.json"
    file.write_bytes(file.read_bytes()[:200])


def other_summary(place: Path) -> None:
    (place / "summary.json").write_text('{"a": 1}\n')


DAMAGE = {
    torn_completions: r"completions.jsonl, line \d+ is damaged",
    lost_lines: "completions.jsonl has 5 of 24 samples",
    no_completions: "completions.jsonl is missing",
    torn_summary: "summary.json is damaged",
    other_summary: "summary.json is damaged",
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_results_are_named_and_evaluated_again(run: RunDir, damage: Callable[[Path], None]) -> None:
    assert evaluate_here(run.root, "trained", steps="1,2", **SAMPLED) == 0
    good = files_of(step_of(run))
    damage(step_of(run))
    with pytest.raises(EvalError, match=f"{DAMAGE[damage]}; evaluate the step again"):
        steps_compared(run.root, "trained", ["1", "2"])
    judged = regrade(run.root, "trained")
    assert next(judged).name == "step_1", "a damaged step costs the others nothing"
    with pytest.raises(EvalError, match=f"step_2: .*{DAMAGE[damage]}"):
        list(judged)
    (row,) = [row for row in read_table(step_of(run).parent) if row["name"] == "step_2"]
    assert row["status"].startswith("damaged: ")
    assert row["accuracy"] == ""
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert files_of(step_of(run)) == good
    assert [row["status"] for row in read_table(step_of(run).parent)] == ["ok", "ok"]


def test_a_damaged_table_is_no_obstacle_and_is_written_anew(run: RunDir) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    table, metrics = step_of(run).parent / TABLE, step_of(run) / "metrics.csv"
    good = table.read_bytes(), metrics.read_bytes()
    for damaged in (b"na", b"step,name,status\n,,\nx,y,z\n", b"\xff\xfe\x00"):
        table.write_bytes(damaged)
        metrics.write_bytes(damaged)
        (evaluation,) = list_evaluations(run.root, "trained")
        assert evaluation["metrics"] == []
        assert len(list(regrade(run.root, "trained"))) == 1
        assert (table.read_bytes(), metrics.read_bytes()) == good


def test_any_text_that_a_model_writes_can_be_read_again(run: RunDir) -> None:
    """U+2028 and its like end a line for some readers, and none of JSON."""
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    file = step_of(run) / "completions.jsonl"
    file.write_text(file.read_text().replace('"completion": "', '"completion": "\u2028\x85', 1), encoding="utf-8")
    (step,) = regrade(run.root, "trained")
    assert len(read_rows(step_of(run))) == step.after["n"]


# ---------------------------------------------------------------------------------------------------- other settings


def test_results_of_other_settings_are_kept_and_come_back(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    sampled = files_of(step_of(run))
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    greedy = files_of(step_of(run))
    (kept,) = (step_of(run).parent / SUPERSEDED).iterdir()
    assert files_of(kept) == sampled
    items = generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert files_of(step_of(run)) == sampled
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    assert files_of(step_of(run)) == greedy
    assert items == []


def test_an_interrupted_evaluation_survives_one_under_other_settings(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_until(run, 3, torn=True)
    there = set(partial_of(run).completions())
    assert there
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    items = generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert sorted(items) == sorted(set(range(24)) - there)


def test_an_evaluation_that_was_stopped_does_not_tell_older_numbers(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert evaluate_here(run.root, "trained", steps="2", num_problems=5) == 0
    capsys.readouterr()

    def interrupted(self: ChildrenHere, wait_s: float = 0.2) -> list[None]:
        os.kill(os.getpid(), signal.SIGINT)
        return []

    monkeypatch.setattr(ChildrenHere, "events", interrupted)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 130
    told = capsys.readouterr().out
    assert "step_2: is not done: 0 of 24 samples are there" in told
    assert "accuracy" not in told


def test_a_failure_of_the_parent_is_in_its_status(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("grpo_train.evaluation.runner.write_step", full)
    with pytest.raises(OSError, match="No space left"):
        evaluate_here(run.root, "trained", steps="2", **SAMPLED)
    status = read_json(step_of(run).parent / "status.json") or {}
    assert (status["state"], status["exit_code"], status["pending"]) == ("crashed", 1, [])
    assert "No space left on device" in status["error"]["summary"]


def test_a_kill_between_two_renames_loses_nothing(tmp_path: Path) -> None:
    for name in (".a b.0123abcd.old", ".a b.4567abcd.tmp", "c", ".c.0123abcd.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    (tmp_path / ".status.json.12.0123abcd.tmp").write_text("{")
    restore_torn(tmp_path)
    assert {path.name: (path / "file").read_text() for path in tmp_path.iterdir()} == {
        "a b": ".a b.0123abcd.old",
        "c": "c",
    }


# ------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a\nb", "x" * 200])
def test_a_name_that_leaves_the_tree_is_refused(run: RunDir, name: str) -> None:
    with pytest.raises(EvalError, match="cannot name results"):
        make_plan(run.root, EvalRequest("trained", ckpt_path=run.training_state / "step_2", name=name))


def test_a_foreign_checkpoint_does_not_take_the_place_of_a_step(run: RunDir, tmp_path: Path) -> None:
    own = run.training_state / "step_2"
    (plan, _) = make_plan(run.root, EvalRequest("trained", ckpt_path=own))
    assert plan.targets[0].name == "step_2"
    with pytest.raises(EvalError, match="--name step_1: so the results of the run's own steps are called"):
        make_plan(run.root, EvalRequest("trained", ckpt_path=own, name="step_1"))
    (tmp_path / "step_2").symlink_to(run.training_state / "step_1")
    with pytest.raises(EvalError, match="--ckpt-path step_2: so the results of the run's own"):
        make_plan(run.root, EvalRequest("trained", ckpt_path=tmp_path / "step_2"))


def test_steps_are_numbers_however_they_are_spelled(run: RunDir) -> None:
    (plan, skipped) = make_plan(run.root, EvalRequest("trained", steps="00,0,02,2"))
    assert ([target.name for target in plan.targets], skipped) == (["step_0", "step_2"], [])
    for word in ("²", "٣"):
        with pytest.raises(EvalError, match=f"'{word}' is no step"):
            make_plan(run.root, EvalRequest("trained", steps=word))
