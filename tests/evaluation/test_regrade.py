"""Judging separately from generating: failing, slow and changed graders."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from grpo_train.evaluation.regrade import Regraded, regrade_evaluations
from grpo_train.evaluation.request import EvalError
from grpo_train.evaluation.results import keys
from grpo_train.evaluation.targets import Unfinished
from grpo_train.evaluation.workers import single_turn
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.files import read_json, read_jsonl
from grpo_train.tasks.addition import AdditionTask
from grpo_train.tasks.shared.base import Attempt, Verdict
from tests.support.engine import environment
from tests.support.evaluating import (
    SAMPLED,
    evaluate_here,
    evaluate_until,
    files_of,
    partial_of,
    record_generated,
    step_of,
)


def test_a_failing_grader_is_not_a_wrong_answer(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"left": 3}
    original = AdditionTask.judge

    def judge(self: AdditionTask, attempt: Attempt) -> Verdict:
        broken["left"] -= 1
        if broken["left"] >= 0:
            raise OSError("no space for programs")
        return original(self, attempt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdditionTask, "judge", judge)
        assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    summary = read_json(step_of(run) / "summary.json") or {}
    assert summary["reasons"]["grader_error"] == 3
    assert summary["rates"]["grader_error"] == 3 / 24
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert "grader_error" not in (read_json(step_of(run) / "summary.json") or {})["reasons"]


def test_thoughts_that_the_prompt_closes_count(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_turn, "closes_thoughts", lambda prompt: True)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    rows = [row for _, row in read_jsonl(step_of(run) / "completions.jsonl")]
    assert all(row["thoughts_closed"] and row["reason"] != "no_close_think" for row in rows)
    before = files_of(step_of(run))
    list(regrade_evaluations(run.root, "trained"))
    assert files_of(step_of(run)) == before


def test_slow_judging_gives_the_same_verdicts(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On threads; only the key differs, because it includes the sandbox."""
    monkeypatch.setattr(AdditionTask, "slow", True)
    monkeypatch.setattr(AdditionTask, "__init__", _slow(AdditionTask.__init__))
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert files_of(step_of(run))["completions.jsonl"] == whole["completions.jsonl"]


def _slow(init: Any) -> Any:
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **{**named, "slow": True})

    return made


def test_regrading_changes_no_byte_without_torch(run: RunDir, whole: dict[str, bytes]) -> None:
    assert evaluate_here(run.root, "trained", steps="1,2", **SAMPLED) == 0
    before = files_of(step_of(run))
    table = (step_of(run).parent / "consolidated_metrics.csv").read_bytes()
    program = (
        "import sys; sys.argv = ['grpo-train', 'regrade', '--training-run', 'trained']\n"
        "from grpo_train.cli import app\n"
        "try: app()\nfinally: assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(run.root), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step_2: 0 of 24 verdicts changed" in done.stdout
    assert files_of(step_of(run)) == before
    assert (step_of(run).parent / "consolidated_metrics.csv").read_bytes() == table
    assert [row["step"] for _, row in read_jsonl(run.logs / "eval_log.jsonl")] == [1, 2]


def test_regrading_applies_a_new_grader(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    old = (read_json(step_of(run) / "summary.json") or {})["metrics"]
    items = record_generated(monkeypatch)
    rows = [row for _, row in read_jsonl(step_of(run) / "completions.jsonl")]
    same = [row for row in rows if (row["correct"], row["flexible"], row["reason"]) == (False, False, "wrong")]
    assert 0 < len(same) < 24
    wrong = Verdict(correct=False, formatted=True, reason="wrong", answer="0", flexible=False)
    monkeypatch.setattr(AdditionTask, "judge", lambda self, attempt: wrong)
    (step,) = regrade_evaluations(run.root, "trained")
    assert isinstance(step, Regraded)
    new = (read_json(step_of(run) / "summary.json") or {})["metrics"]
    assert (new["correct"], new["format_rate"]) == (0, 1.0)
    assert new["mean_length"] == old["mean_length"]
    changed = [(row["index"], row["sample"], row["reason"], "wrong") for row in rows if row not in same]
    assert [(each.index, each.sample, each.before, each.after) for each in step.changed] == changed
    assert f"{len(step.changed)} of 24 verdicts changed, accuracy {fraction(old['accuracy'])} -> .000" in next(
        step.lines()
    )
    assert items == []


def test_a_changed_grader_reuses_completions(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """In an evaluation interrupted before the grader was fixed."""
    assert evaluate_until(run, 5, torn=False)
    monkeypatch.setattr(keys, "grader_key", lambda task, config: "fixed")
    items = record_generated(monkeypatch)
    done = set(partial_of(run).completions())
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert set(items) == set(range(24)) - done


def test_a_changed_grader_judges_stored_results_again(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    monkeypatch.setattr(keys, "grader_key", lambda task, config: "fixed")
    items = record_generated(monkeypatch)
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED, nproc=2) == 0
    assert items == []
    files = files_of(step_of(run))
    assert files["completions.jsonl"] == whole["completions.jsonl"]
    assert files["metrics.csv"] == whole["metrics.csv"]
    assert (read_json(step_of(run) / "summary.json") or {})["key"]["grading"]["grader"] == "fixed"


def test_regrading_rejects_changed_problems(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EvalError, match="has no complete evaluation"):
        list(regrade_evaluations(run.root, "trained"))
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    monkeypatch.setattr("grpo_train.tasks.addition.prompt_of", lambda a, b: f"{a} plus {b} is ")
    (failure,) = regrade_evaluations(run.root, "trained")
    assert isinstance(failure, Unfinished)
    assert (failure.name, failure.code) == ("step_2", "bad_evaluation")
    assert "the problems of task addition have changed" in failure.error
    with pytest.raises(EvalError, match="no complete evaluation of mbpp"):
        list(regrade_evaluations(run.root, "trained", ["mbpp"]))
