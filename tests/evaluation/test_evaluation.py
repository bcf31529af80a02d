"""Evaluation: what is asked is evaluated once, and what fails costs nothing else."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.evaluation.plan import EvalError, EvalRequest, make_plan, subset
from grpo_train.evaluation.report.statistics import wilson_interval
from grpo_train.run_dir import RunDir, RunDirError, list_evaluations
from grpo_train.run_dir.files import read_json, read_jsonl
from grpo_train.run_dir.processes import run_id_of
from tests.support.engine import GRPO_TRAIN, find_by_run_id, grpo_train, running, train_here, wait_for, write_config


@pytest.fixture(scope="module")
def trained(make_root: Callable[[], Path]) -> RunDir:
    """Three steps of full weights."""
    root = make_root()
    cfg = write_config(root, run__total_steps=3, model__adapter="lora")
    return train_here(root, cfg, "trained")


@pytest.fixture
def run(trained: RunDir, tmp_path: Path) -> RunDir:
    """A copy to damage."""
    root = tmp_path / "root"
    shutil.copytree(trained.root, root, symlinks=True)
    return RunDir(root / "training_runs" / "trained")


def table(run: RunDir, label: str = "addition") -> dict[str, dict[str, str]]:
    path = run.root / "eval_runs" / f"{run.name}_{label}" / "consolidated_metrics.csv"
    return {row["name"]: row for row in csv.DictReader(path.open(newline=""))}


def targets(run: RunDir, **request: object) -> list[str]:
    plan, _ = make_plan(run.root, EvalRequest("trained", **request))  # type: ignore[arg-type]
    return [target.name for target in plan.targets]


# ------------------------------------------------------------------------------------------------------------- plan


@pytest.mark.parametrize(
    ("steps", "names"),
    [
        ("all", ["step_1", "step_2", "step_3"]),
        ("latest", ["step_3"]),
        ("final", ["step_3"]),
        ("latest,final,3", ["step_3"]),
        ("3, 1,", ["step_3", "step_1"]),
        ("2,latest", ["step_2", "step_3"]),
    ],
)
def test_steps_are_named_and_evaluated_once(trained: RunDir, steps: str, names: list[str]) -> None:
    assert targets(trained, steps=steps) == names


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"steps": "lastest"}, "'lastest' is no step"),
        ({"steps": "7"}, r"no checkpoint step_7 \(complete steps: 1, 2, 3\)"),
        ({"steps": ""}, "--steps"),
        ({"dataset": "gsmk8"}, "no task is called 'gsmk8'; did you mean gsm8k"),
        ({"dataset": "gsm8k", "dataset_path": "/nowhere"}, "'/nowhere' does not exist"),
        ({"ckpt_path": Path("/nowhere")}, "no model there"),
        ({"opponents": ["random"]}, "--opponent random: task addition is no game"),
        ({"dataset": "tictactoe", "opponents": ["no/where"]}, r"eval\.opponents: .*no/where: no model there"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_in_words(
    trained: RunDir, request_: dict[str, object], message: str
) -> None:
    with pytest.raises(EvalError, match=message):
        targets(trained, **request_)


def test_few_matches_go_through_roles_and_opponents_in_turn(trained: RunDir) -> None:
    whole, few, half = (
        make_plan(trained.root, EvalRequest("trained", dataset="tictactoe", num_problems=most, subset_frac=share))[0]
        for most, share in ((None, 1.0), (3, 1.0), (None, 0.5))
    )
    assert few.indices == [0, 1, 2]
    assert half.indices == list(range(len(whole.indices) // 2))


def test_an_unknown_run_is_refused(trained: RunDir) -> None:
    with pytest.raises(RunDirError, match="did you mean trained"):
        make_plan(trained.root, EvalRequest("traind"))


@given(st.integers(1, 400), st.integers(0, 5), st.lists(st.floats(0.001, 1), min_size=2, max_size=4))
def test_subsets_are_seeded_and_nested(size: int, seed: int, fractions: list[float]) -> None:
    previous: set[int] = set()
    for fraction in sorted(fractions):
        chosen = subset(size, fraction, seed)
        assert chosen == subset(size, fraction, seed) == sorted(set(chosen))
        assert 1 <= len(chosen) <= size
        assert len(chosen) - size * fraction < 1
        assert previous <= set(chosen)
        previous = set(chosen)
    assert subset(size, 1.0, seed) == list(range(size))


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (5, 10, 0.236593, 0.763407), (81, 263, 0.255289, 0.366229)],
)
def test_wilson_interval(correct: int, total: int, low: float, high: float) -> None:
    """The last is Newcombe's (1998) example."""
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=1e-4)


def test_an_interval_of_nothing_is_everything() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


# ---------------------------------------------------------------------------------------------------------- results


def test_an_evaluation_writes_its_tree_and_loses_no_step_to_another(run: RunDir) -> None:
    """Step 2's weights are damaged: it is reported, 1 and 3 are evaluated."""
    weights = run.training_state / "step_2" / "model" / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 0xFF
    weights.write_bytes(data)
    done = grpo_train("eval", "--training-run", "trained", root=run.root)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "step_2: failed: checkpoint" in done.stdout
    assert "does not have the checksum" in done.stdout
    rows = table(run)
    assert list(rows) == ["step_1", "step_2", "step_3"]
    assert rows["step_2"]["status"].startswith("failed: checkpoint")
    folder = run.root / "eval_runs" / "trained_addition"
    assert sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")) == [
        "consolidated_metrics.csv", "eval_config.yaml", "status.json", "step_1_addition", "step_3_addition",
    ]  # fmt: skip
    for step in (1, 3):
        files = folder / f"step_{step}_addition"
        completions = [row for _, row in read_jsonl(files / "completions.jsonl")]
        (metrics,) = csv.DictReader((files / "metrics.csv").open(newline=""))
        summary = read_json(files / "summary.json") or {}
        correct = sum(row["correct"] for row in completions)
        assert len(completions) == int(metrics["n"]) == 21  # 2 % of 1,024, rounded up
        assert float(metrics["accuracy"]) == correct / 21 == summary["metrics"]["accuracy"]
        assert float(metrics["ci_low"]) <= correct / 21 <= float(metrics["ci_high"])
        assert {row["step"] for row in completions} == {step}
        assert summary["checkpoint"] == f"training_runs/trained/training_state/step_{step}"
        assert metrics == rows[f"step_{step}"]
    status = read_json(folder / "status.json") or {}
    assert (status["state"], status["exit_code"]) == ("crashed", 1)
    assert [failure["name"] for failure in status["failures"]] == ["step_2"]
    (listed,) = list_evaluations(run.root, "trained")
    assert (listed["name"], len(listed["metrics"])) == ("trained_addition", 3)


def test_a_step_that_takes_too_long_is_reported(run: RunDir) -> None:
    done = grpo_train("eval", "--training-run", "trained", "--steps", "1,3", "--timeout", "0.2", root=run.root)
    assert done.returncode == 1
    rows = table(run)
    assert [rows[name]["status"] for name in ("step_1", "step_3")] == [
        "failed: timed out after 0.2 s (eval.timeout)"
    ] * 2
    assert find_by_run_id(run_id_of(run.root / "eval_runs" / "trained_addition")) == []


def test_a_killed_child_costs_only_its_step(run: RunDir) -> None:
    folder = run.root / "eval_runs" / "trained_addition"
    # Long enough that a step is never over before its progress has been told.
    words = ["--subset-frac", "1", "--num-samples", "4", "--temperature", "1", "--batch-size", "4"]
    command = [*GRPO_TRAIN, "eval", "--training-run", "trained", *words]
    run_id = run_id_of(folder)
    with running(command, run.root, run_id) as parent:
        progress = lambda: (read_json(folder / "status.json") or {}).get("progress")  # noqa: E731
        wait_for(lambda: (progress() or {}).get("name") == "step_1", "the first step's evaluation")
        (child,) = find_by_run_id(run_id)
        os.kill(child, signal.SIGKILL)
        wait_for(lambda: (progress() or {}).get("name") == "step_2", "the second step's evaluation")
        pending = (read_json(folder / "status.json") or {})["pending"]
        assert pending == [f"training_runs/trained/training_state/step_{step}" for step in (2, 3)]
        parent.send_signal(signal.SIGINT)
        output, _ = parent.communicate(timeout=30)
    assert parent.returncode == 130
    assert "step_1: failed: was killed by SIGKILL" in output
    assert "stopping the evaluation; the steps that are done are kept" in output
    assert (read_json(folder / "status.json") or {})["state"] == "stopped"
    assert not list(folder.glob(".*.tmp"))


def test_a_checkpoint_by_its_path_under_a_name_of_its_own(run: RunDir, tmp_path: Path) -> None:
    """Also: the run by its path, another data set, and no root in the environment."""
    data = tmp_path / "test.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"}) + "\n" for n in range(5))
    )
    elsewhere = tmp_path / "adapter"
    shutil.copytree(run.training_state / "step_2", elsewhere)
    done = grpo_train(
        "eval", "--training-run", run.path, "--ckpt-path", elsewhere, "--name", "mine", "--eval-dataset", "gsm8k",
        "--eval-path", data, "--max-completion-length", "4", "--subset-frac", "1", root=None,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert list(table(run, "gsm8k_r1_template")) == ["mine"]
    row = table(run, "gsm8k_r1_template")["mine"]
    assert (row["step"], row["n"], row["max_completion_length"]) == ("2", "5", "4")
    completions = run.root / "eval_runs" / "trained_gsm8k_r1_template" / "mine_gsm8k_r1_template" / "completions.jsonl"
    assert [row["gold"] for _, row in read_jsonl(completions)] == ["0", "2", "4", "6", "8"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--training-run", "trained", "--subset-frac", "0"], "eval.subset_frac: input should be greater than 0"),
        (["--training-run", "trained", "--timeout", "0"], "eval.timeout: input should be greater than 0"),
        (["--training-run", "traind"], "did you mean trained"),
        (["--steps", "1"], "say which run it belongs to"),
    ],
)
def test_bad_arguments_end_in_words(trained: RunDir, arguments: list[str], message: str) -> None:
    done = grpo_train("eval", *arguments, root=trained.root)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_runs_of_the_older_layout_can_be_evaluated(trained: RunDir, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(trained.root / "models", root / "models")
    old = root / "rl_runs" / "old"
    shutil.copytree(trained.training_state / "step_2" / "model", old / "step_5")  # no manifest, no model/
    plan, _ = make_plan(root, EvalRequest("old", dataset="addition", steps="all"))
    assert [(target.name, target.step) for target in plan.targets] == [("step_5", 5)]
