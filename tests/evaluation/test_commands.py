"""``grpo-train eval``, ``regrade`` and ``compare`` as commands: result trees, failures, signals, output, exit codes."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from grpo_train.evaluation.output import TerminalOutput
from grpo_train.run_dir import RunDir, list_evaluations, read_table
from grpo_train.run_dir.files import read_json, read_jsonl
from grpo_train.run_dir.processes import run_id_of
from tests.support.engine import GRPO_TRAIN, command_here, find_by_run_id, running, wait_for
from tests.support.evaluating import copy_of, eval_command, stopped_after
from tests.support.patience import PATIENCE


@pytest.fixture
def run(three_steps: RunDir, tmp_path: Path) -> RunDir:
    """A copy to evaluate and damage."""
    return copy_of(three_steps, tmp_path)


def table(run: RunDir, label: str = "addition") -> dict[str, dict[str, str]]:
    path = run.root / "eval_runs" / f"{run.name}_{label}" / "consolidated_metrics.csv"
    return {row["name"]: row for row in csv.DictReader(path.open(newline=""))}


def test_a_damaged_step_does_not_affect_the_others(run: RunDir) -> None:
    weights = run.training_state / "step_2" / "model" / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 0xFF
    weights.write_bytes(data)
    done = eval_command("--training-run", "trained", root=run.root)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "step_2: failed: checkpoint" in done.stdout
    assert "has the wrong checksum" in done.stdout
    rows = table(run)
    assert list(rows) == ["step_1", "step_2", "step_3"]
    assert rows["step_2"]["status"] == "failed"
    assert rows["step_2"]["error"].startswith("checkpoint")
    assert rows["step_2"]["code"] == "bad_checkpoint"
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
    assert [(failure["name"], failure["code"]) for failure in status["failures"]] == [("step_2", "bad_checkpoint")]
    assert status["error"]["code"] == "bad_checkpoint"
    (listed,) = list_evaluations(run.root, "trained")
    assert (listed["name"], len(listed["metrics"])) == ("trained_addition", 3)


def test_a_step_that_times_out_is_reported(run: RunDir, tmp_path: Path) -> None:
    run_id = run_id_of(run.root / "eval_runs" / "trained_addition")
    words = [*GRPO_TRAIN, "eval", "--training-run", "trained", "--steps", "1,3", "--timeout", "0.2"]
    with running(words, run.root, run_id, **stopped_after(1, tmp_path / "start")) as parent:
        output, _ = parent.communicate(60 * PATIENCE)
    assert parent.returncode == 1, output
    rows = table(run)
    for name in ("step_1", "step_3"):
        assert (rows[name]["status"], rows[name]["code"]) == ("failed", "timeout")
        assert rows[name]["error"] == "timed out after 0.2 s (eval.timeout)"
    assert find_by_run_id(run_id) == []


def test_a_failure_is_listed_beside_earlier_results(run: RunDir) -> None:
    """Until an evaluation of the step succeeds."""

    def listed() -> list[tuple[str, str, bool]]:
        rows = read_table(run.root / "eval_runs" / "trained_addition")
        return [(row["name"], row["status"], bool(row["accuracy"])) for row in rows]

    def evaluate(*options: str) -> int:
        return eval_command("--training-run", "trained", "--steps", "1", *options, root=run.root).returncode

    assert evaluate() == 0
    weights = run.training_state / "step_1" / "model" / "adapter_model.safetensors"
    content = weights.read_bytes()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 0xFF]))
    assert evaluate("--num-problems", "5") == 1
    failed = [("step_1", "ok", True), ("step_1", "failed", False)]
    assert listed() == failed
    command_here("regrade", "--training-run", "trained", root=run.root)
    assert listed() == failed
    weights.write_bytes(content)
    assert evaluate("--num-problems", "5") == 0
    assert listed() == [("step_1", "ok", True)]


def test_a_killed_worker_fails_only_its_step(run: RunDir, tmp_path: Path) -> None:
    folder = run.root / "eval_runs" / "trained_addition"
    run_id = run_id_of(folder)
    words = [*GRPO_TRAIN, "eval", "--training-run", "trained", "--batch-size", "2"]
    with running(words, run.root, run_id, **stopped_after(3, tmp_path / "start")) as parent:
        progress = lambda: (read_json(folder / "status.json") or {}).get("progress")  # noqa: E731
        wait_for(lambda: (progress() or {}).get("name") == "step_1", "the first step's evaluation")
        (worker,) = find_by_run_id(run_id)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: (progress() or {}).get("name") == "step_2", "the second step's evaluation")
        pending = (read_json(folder / "status.json") or {})["pending"]
        assert pending == [f"training_runs/trained/training_state/step_{step}" for step in (2, 3)]
        parent.send_signal(signal.SIGINT)
        output, _ = parent.communicate(timeout=30 * PATIENCE)
    assert parent.returncode == 130
    assert "step_1: failed: was killed by SIGKILL" in output
    assert "stopping the evaluation; completed steps are kept" in output
    assert (read_json(folder / "status.json") or {})["state"] == "stopped"
    assert not list(folder.glob(".*.tmp"))


def test_a_named_checkpoint_path(run: RunDir, tmp_path: Path) -> None:
    """With the run given by path, another dataset, and no root in the environment."""
    data = tmp_path / "test.jsonl"
    data.write_text(
        "".join(json.dumps({"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"}) + "\n" for n in range(5))
    )
    elsewhere = tmp_path / "adapter"
    shutil.copytree(run.training_state / "step_2", elsewhere)
    done = eval_command(
        "--training-run", run.path, "--ckpt-path", elsewhere, "--name", "mine", "--eval-dataset", "gsm8k",
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
        (["--steps", "1"], "--training-run is required unless --ckpt-path is a step of a run"),
        (["--name", "mine"], "--name needs --ckpt-path"),
    ],
)
def test_usage_errors_exit_with_2(three_steps: RunDir, arguments: list[str], message: str) -> None:
    done = eval_command(*arguments, root=three_steps.root)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_ckpt_path_of_the_older_layout_works_alone(three_steps: RunDir, tmp_path: Path) -> None:
    """Relative to the root; the base model is the one named by the adapter."""
    root = tmp_path / "root"
    shutil.copytree(three_steps.root / "models", root / "models")
    shutil.copytree(three_steps.training_state / "step_2" / "model", root / "rl_runs" / "old" / "step_5")
    options = ["--eval-dataset", "addition", "--num-problems", "3", "--max-completion-length", "4"]
    done = eval_command("--ckpt-path", "rl_runs/old/step_5", *options, root=root)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = csv.DictReader((root / "eval_runs" / "old_addition" / "consolidated_metrics.csv").open(newline=""))
    assert (row["name"], row["step"], row["status"], row["n"]) == ("step_5", "5", "ok", "3")


# ----------------------------------------------------------------------------------------------------------- output


def test_json_of_eval_regrade_and_compare(run: RunDir) -> None:
    weights = run.training_state / "step_3" / "model" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    name = ["--training-run", "trained", "--json"]
    done = eval_command(*name, "--steps", "1,2,3", "--num-problems", "5", root=run.root)
    assert done.returncode == 1
    (evaluation,) = json.loads(done.stdout)["evaluations"]
    assert (evaluation["state"], evaluation["dataset"], evaluation["exit_code"]) == ("crashed", "addition", 1)
    one, two, three = evaluation["steps"]
    assert [step["status"] for step in evaluation["steps"]] == ["ok", "ok", "failed"]
    assert (one["step"], one["done"], one["total"], one["n"]) == (1, 5, 5, 5)
    assert isinstance(one["accuracy"], float)
    assert [comparison["reference"] for comparison in two["comparisons"]] == ["step_1"]
    assert three["code"] == "bad_checkpoint"
    assert "step_2: accuracy" in done.stderr

    regraded = json.loads(command_here("regrade", *name, root=run.root).stdout)
    assert [(step["name"], step["changed"]) for step in regraded["steps"]] == [("step_1", []), ("step_2", [])]
    assert regraded["errors"] == []

    done = command_here("compare", *name, "--steps", "1,2,3", root=run.root)
    assert done.returncode == 1
    compared = json.loads(done.stdout)
    assert [(row["name"], row["reference"]) for row in compared["comparisons"]] == [("step_2", "step_1")]
    assert [error["code"] for error in compared["errors"]] == ["bad_evaluation"]
    assert "error: step_3 has not been evaluated" in done.stderr

    done = command_here("compare", *name, "--with", "trained", root=run.root)
    compared = json.loads(done.stdout)
    assert [(row["run"], row["name"], row["difference"]) for row in compared["comparisons"]] == [
        ("trained", "step_1", 0.0), ("trained", "step_2", 0.0),
    ]  # fmt: skip
    done = command_here("compare", "--training-run", "trained", root=run.root)
    assert (done.returncode, done.stderr) == (2, "error: --steps or --with is required\n")


def test_terminal_output_has_a_progress_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    with TerminalOutput() as output:
        output.progress("step_1", 12, 24)
        output.line("step_1: accuracy [0.1, 0.2]")
        output._progress.refresh()
    printed = capsys.readouterr().out
    assert "step_1: accuracy [0.1, 0.2]" in printed
    assert "12/24" in printed
    assert "ETA" in printed
