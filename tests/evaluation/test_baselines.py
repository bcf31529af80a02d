"""Models evaluated without a run: the same results and statistics as those of runs."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_train.evaluation import plan
from grpo_train.evaluation.regrade import regrade_evaluations
from grpo_train.evaluation.report.compare import compare_runs
from grpo_train.evaluation.request import EvalError, EvalRequest
from grpo_train.export.plan import ExportRequest, plan_export
from grpo_train.export.write import write_export
from grpo_train.report.report import make_report
from grpo_train.run_dir import RunDir, list_baselines, list_evaluations
from grpo_train.run_dir.root import check_name
from grpo_train.run_dir.status import RunDirError
from grpo_tui.views.compare.model import facts_of
from remote.agent.operations import baselines_of
from tests.support.engine import command_here
from tests.support.evaluating import eval_command, evaluate_here, files_of, outcome_of

SETTINGS: dict[str, Any] = {"num_problems": 16, "max_completion_length": 40}


def completions(folder: Path) -> list[str]:
    rows = (folder / "completions.jsonl").read_text().splitlines()
    return [json.loads(row)["completion"] for row in rows]


def test_automatic_problems_of_a_model(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """No launch has resolved the config."""
    monkeypatch.setattr(plan, "read_gpu_facts", lambda: ((), ""))
    request = EvalRequest(None, model="tiny", dataset="addition", overrides=["eval.num_problems=auto"])
    assert len(plan.plan_evaluation(run.root, request)[0].indices) == 256


def test_a_baseline_has_the_results_of_step_0(run: RunDir) -> None:
    outcome = outcome_of(run.root, "trained", model="tiny", **SETTINGS)
    assert (outcome.run, outcome.dataset, outcome.exit_code) == ("@tiny", "addition", 0)
    assert evaluate_here(run.root, "trained", steps="0,2", **SETTINGS) == 0
    evals = run.root / "eval_runs"
    baseline, start = evals / "@tiny_addition" / "model_addition", evals / "trained_addition" / "step_0_addition"
    assert completions(baseline) == completions(start)
    again = outcome_of(run.root, "trained", model="tiny", **SETTINGS)
    assert again.exit_code == 0
    pairs, errors = compare_runs(run.root, "@tiny", ["trained"])
    assert not errors
    assert [(each.name, each.reference, each.n) for each in pairs] == [("step_0", "@tiny", 16), ("step_2", "@tiny", 16)]
    assert (pairs[0].difference, pairs[0].gained, pairs[0].lost) == (0.0, 0, 0)
    (pair,), _ = compare_runs(run.root, "trained", ["tiny"], ["2"])
    assert (pair.name, pair.run, pair.reference) == ("model", "@tiny", "step_2")
    assert evaluate_here(run.root, "trained", model="tiny", name="shorter", **{**SETTINGS, "num_problems": 8}) == 0
    report = make_report(run.root, ["trained"])
    assert [(each.steps[0].name, each.model) for each in report.baselines] == [("@tiny", "models/tiny")]
    assert [(each.name, each.reference, each.result) for each in report.pairs] == [
        ("step_2", "@tiny", replace(pairs[1], reference="model", run=""))
    ]
    shown = baselines_of(run.root, list_evaluations(run.root, "trained"))
    assert [(row["name"], row["model"]) for row in shown] == [
        ("@shorter_addition", "models/tiny"), ("@tiny_addition", "models/tiny"),
    ]  # fmt: skip
    found = facts_of("trained", {"baselines": shown}).baselines["addition"]["@tiny"]
    assert (found.value, found.problems) == (pytest.approx(pairs[0].accuracy), 16)


def test_an_exported_model_answers_like_its_step(run: RunDir, tmp_path: Path) -> None:
    """Merged weights, and the adapter on its base."""
    assert evaluate_here(run.root, "trained", steps="2", **SETTINGS) == 0
    expected = completions(run.root / "eval_runs" / "trained_addition" / "step_2_addition")
    write_export(plan_export(ExportRequest("trained", merge=True, to=tmp_path / "merged", root=run.root)))
    adapter = tmp_path / "adapter"
    shutil.copytree(run.training_state / "step_2" / "model", adapter)
    for folder in (tmp_path / "merged", adapter):
        assert evaluate_here(run.root, "trained", model=str(folder), **SETTINGS) == 0
        found = run.root / "eval_runs" / f"@{folder.name}_addition" / "model_addition"
        assert completions(found) == expected, folder.name


def test_settings_without_a_run(run: RunDir, tmp_path: Path) -> None:
    small = {"num_problems": 2, "max_completion_length": 8}
    assert evaluate_here(run.root, None, model="tiny", dataset="echo", overrides=["task.level=2"], **small) == 0
    config = tmp_path / "own.yaml"
    config.write_text("task: {name: counting, template: question}\n")
    assert evaluate_here(run.root, None, model="tiny", cfg=config, name="mine", **small) == 0
    (summary,) = run.root.glob("eval_runs/@tiny_echo/model_echo/summary.json")
    assert json.loads(summary.read_text())["task"]["level"] == 2
    (summary,) = run.root.glob("eval_runs/@mine_counting/model_counting/summary.json")
    assert json.loads(summary.read_text())["task"]["template"] == "question"
    with pytest.raises(EvalError, match="--model needs --dataset"):
        outcome_of(run.root, None, model="tiny")


def test_different_settings_are_named(run: RunDir) -> None:
    assert evaluate_here(run.root, "trained", steps="2", num_problems=4) == 0
    assert evaluate_here(run.root, "trained", model="tiny", num_problems=5, max_completion_length=8) == 0
    with pytest.raises(EvalError, match="no step is evaluated"):
        compare_runs(run.root, "trained", ["tiny"], ["1"])
    _, (error,) = compare_runs(run.root, "trained", ["tiny"])
    assert "different settings (max_completion_length, data or prompt template)" in str(error)


def test_a_name_belongs_to_one_model(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(RunDirError):
        check_name("@tiny")
    assert evaluate_here(run.root, "trained", model="tiny", num_problems=2) == 0
    other = tmp_path / "other" / "tiny"
    shutil.copytree(run.root / "models" / "tiny", other)
    with pytest.raises(EvalError, match="@tiny belongs to the results of models/tiny; choose another with --name"):
        evaluate_here(run.root, "trained", model=str(other), num_problems=2)
    assert evaluate_here(run.root, "trained", model=str(other), name="second", num_problems=2) == 0
    assert [each["run"] for each in list_baselines(run.root)] == ["@second", "@tiny"]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("training_runs", "no model found"),
        ("no_such_model", "is not a model directory"),
        ("qwen2_5_5", "did you mean"),
    ],
)
def test_unusable_models(run: RunDir, model: str, message: str) -> None:
    with pytest.raises(EvalError, match=message) as error:
        outcome_of(run.root, "trained", model=model)
    assert str(error.value).startswith(f"--model {model}: ")


def test_regrade_judges_a_baseline(run: RunDir) -> None:
    assert evaluate_here(run.root, "trained", model="tiny", **SETTINGS) == 0
    folder = run.root / "eval_runs" / "@tiny_addition" / "model_addition"
    before = files_of(folder)
    (step,) = regrade_evaluations(run.root, "@tiny")
    assert (step.name, getattr(step, "changed", None)) == ("model", [])
    assert files_of(folder) == before


def test_the_commands_list_and_compare(run: RunDir) -> None:
    few = ("--num-problems", 4, "--root", run.root)
    done = eval_command("--model", "tiny", "--training-run", "trained", *few, root=None)
    assert done.returncode == 0, done.stderr
    done = command_here("runs", "--root", run.root, root=None)
    (line,) = [line.split() for line in done.stdout.splitlines() if line.startswith("models/tiny")]
    assert line[1:3] == ["@tiny", "addition"]
    summary = json.loads((run.root / "eval_runs/@tiny_addition/model_addition/summary.json").read_text())
    assert (float(line[3]), line[-1]) == (pytest.approx(summary["metrics"]["accuracy"], abs=0.005), "4")
    rows = json.loads(command_here("runs", "--json", "--root", run.root, root=None).stdout)
    assert [(row["run"], row["state"]) for row in rows] == [("trained", "finished"), ("@tiny", "baseline")]
    assert eval_command("--training-run", "trained", "--steps", 2, *few, root=None).returncode == 0
    done = command_here("compare", "--training-run", "trained", "--with", "@tiny", "--root", run.root, root=None)
    assert done.stdout.startswith("addition @tiny: "), done.stdout + done.stderr
    for wrong in (("--steps", "2"), ("--cfg", "x", "--training-run", "trained")):
        assert eval_command("--model", "tiny", *wrong, root=run.root).returncode == 2
    assert "--cfg and --set need --model" in eval_command("--set", "a.b=1", root=run.root).stderr
