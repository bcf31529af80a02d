"""Grading apart from generating: graders that fail, are slow, or are new."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from grpo_train.evaluation.plan import EvalError
from grpo_train.evaluation.results import keys
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json, read_jsonl
from grpo_train.tasks.addition import AdditionTask
from grpo_train.tasks.shared.base import Attempt, Verdict
from tests.support.engine import environment
from tests.support.evaluating import (
    SAMPLED,
    evaluate_here,
    evaluate_until,
    files_of,
    generated,
    partial_of,
    step_of,
)

# ------------------------------------------------------------------------------------------------------------ grading


def test_a_failing_grader_is_no_wrong_answer(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"left": 3}
    original = AdditionTask.judge

    def judge(self: AdditionTask, attempt: Attempt) -> Verdict:
        broken["left"] -= 1
        if broken["left"] >= 0:
            raise OSError("no room for programs")
        return original(self, attempt)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdditionTask, "judge", judge)
        assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    summary = read_json(step_of(run) / "summary.json") or {}
    assert summary["reasons"]["grader_error"] == 3
    assert summary["rates"]["grader_error"] == 3 / 24
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert "grader_error" not in (read_json(step_of(run) / "summary.json") or {})["reasons"]


def test_slow_judging_overlaps_and_says_the_same(
    run: RunDir, whole: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Judged on threads, the same verdicts; only the key says that programs may have been run."""
    monkeypatch.setattr(AdditionTask, "slow", True)
    monkeypatch.setattr(AdditionTask, "__init__", _slow(AdditionTask.__init__))
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert files_of(step_of(run))["completions.jsonl"] == whole["completions.jsonl"]


def _slow(init: Any) -> Any:
    def made(self: Any, *arguments: Any, **named: Any) -> None:
        init(self, *arguments, **{**named, "slow": True})

    return made


def test_regrading_with_the_same_grader_changes_no_byte_and_needs_no_torch(
    run: RunDir, whole: dict[str, bytes]
) -> None:
    assert evaluate_here(run.root, "trained", steps="1,2", **SAMPLED) == 0
    before = files_of(step_of(run))
    table = (step_of(run).parent / "consolidated_metrics.csv").read_bytes()
    program = (
        "import sys; sys.argv = ['grpo-train', 'regrade', '--training-run', 'trained']\n"
        "from grpo_train.cli.commands import app\n"
        "try: app()\nfinally: assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(run.root), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "step_2: 0 of 24 verdicts changed" in done.stdout
    assert files_of(step_of(run)) == before
    assert (step_of(run).parent / "consolidated_metrics.csv").read_bytes() == table
    assert [row["step"] for _, row in read_jsonl(run.logs / "eval_log.jsonl")] == [1, 2]


def test_a_new_grader_is_applied_and_what_changed_is_said(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_train.evaluation.regrade import regrade

    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    old = (read_json(step_of(run) / "summary.json") or {})["metrics"]
    items = generated(monkeypatch)
    wrong = Verdict(correct=False, formatted=True, reason="wrong", answer="0")
    monkeypatch.setattr(AdditionTask, "judge", lambda self, attempt: wrong)
    (step,) = regrade(run.root, "trained")
    new = (read_json(step_of(run) / "summary.json") or {})["metrics"]
    assert (new["correct"], new["format_rate"]) == (0, 1.0)
    assert new["mean_length"] == old["mean_length"]
    assert len(step.changed) >= old["correct"]
    assert f"{len(step.changed)} of 24 verdicts changed, accuracy {old['accuracy']:.4f} -> 0.0000" in next(step.lines())
    assert items == []


def test_a_changed_grader_judges_again_without_generating(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation that was interrupted before the grader was mended."""
    assert evaluate_until(run, 5, torn=False)
    monkeypatch.setattr(keys, "grader_key", lambda task, config: "mended")
    items = generated(monkeypatch)
    there = set(partial_of(run).completions())
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    assert set(items) == set(range(24)) - there


def test_regrading_refuses_other_data(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    from grpo_train.evaluation.regrade import regrade

    with pytest.raises(EvalError, match="has no complete evaluation"):
        list(regrade(run.root, "trained"))
    assert evaluate_here(run.root, "trained", steps="2", **SAMPLED) == 0
    monkeypatch.setattr("grpo_train.tasks.addition.prompt_of", lambda a, b: f"{a} plus {b} is ")
    with pytest.raises(EvalError, match="asks other problems"):
        list(regrade(run.root, "trained"))
    with pytest.raises(EvalError, match="no complete evaluation of mbpp"):
        list(regrade(run.root, "trained", ["mbpp"]))
