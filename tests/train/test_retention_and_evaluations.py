"""Retention beside evaluations: what they announce stays, and a removed step is skipped."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from grpo_train.evaluation import runner
from grpo_train.evaluation.output import EvaluationOutput
from grpo_train.evaluation.plan import EvalPlan, evaluation_paths
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.targets import Target, Unfinished
from grpo_train.run_dir import RunDir, StatusWriter, read_table
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.processes import run_id_of
from grpo_train.train.retention import prune_checkpoints
from tests.support.engine import GRPO_TRAIN, running, train_here, wait_for, write_config


@pytest.fixture
def quiet_runner(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Runs an evaluation's parent in this process, without its process-wide settings."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    monkeypatch.setattr(runner, "become_subreaper", lambda: None)
    yield
    for number, handler in handlers.items():
        signal.signal(number, handler)


def plan_of(run: RunDir, *steps: int) -> EvalPlan:
    config = {
        "eval": {"timeout": 1, "max_completion_length": None},
        "rollout": {"max_completion_length": 8},
        "task": {},
        "run": {"seed": 0},
    }
    targets = [Target(f"step_{step}", step, str(run.training_state / f"step_{step}")) for step in steps]
    folder = run.root / "eval_runs" / "one_addition"
    return EvalPlan(run.name, str(run.root), str(folder), "addition", config, [0], targets, None)


def evaluate_here(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, plan: EvalPlan, child: Callable[[Any, EvalPlan], set[str]]
) -> tuple[int, dict[str, Any]]:
    """Run an evaluation whose child is a function; returns exit code and final status."""
    monkeypatch.setattr(runner, "plan_evaluation", lambda root, request: (plan, []))
    monkeypatch.setattr(runner, "each_task", lambda root, request: [request])
    monkeypatch.setattr(runner.EvaluationRunner, "_run_workers", child)
    (outcome,) = runner.run_evaluations(run.root, [EvalRequest(run.name)])
    return outcome.exit_code, read_json(Path(plan.folder) / "status.json") or {}


def test_evaluations_announce_steps_until_done(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, quiet_runner: None
) -> None:
    seen: list[list[int]] = []

    def child(self: Any, plan: EvalPlan) -> set[str]:
        seen.append(prune_checkpoints(run, keep_last=1, keep_every=0))
        self._release(plan, {"step_3"})
        seen.append(prune_checkpoints(run, keep_last=1, keep_every=0))
        return {target.name for target in plan.targets}

    code, status = evaluate_here(run, monkeypatch, plan_of(run, 3, 4), child)
    assert (code, status["state"], status["pending"]) == (0, "finished", [])
    assert seen == [[1, 2], [3]]
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [4]


def test_removed_step_is_skipped_not_failed(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, quiet_runner: None, capfd: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(run, 2, 5)
    asked: list[str] = []

    def child(self: Any, plan: EvalPlan) -> set[str]:
        asked.extend(target.name for target in plan.targets)
        return {target.name for target in plan.targets}

    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 2, 3, 4]
    code, status = evaluate_here(run, monkeypatch, plan, child)
    assert (code, status["state"], status["failures"], asked) == (0, "finished", [], ["step_5"])
    assert status["skipped"][0]["name"] == "step_2"
    assert "step_2: skipped: removed after it was requested" in capfd.readouterr().out
    (row,) = [row for row in read_table(Path(plan.folder)) if row["name"] == "step_2"]
    assert (row["status"], row["code"]) == ("skipped", "no_checkpoint")


def test_evaluation_without_remaining_steps_fails(
    run: RunDir, monkeypatch: pytest.MonkeyPatch, quiet_runner: None
) -> None:
    plan = plan_of(run, 1)
    prune_checkpoints(run, keep_last=1, keep_every=0)
    code, status = evaluate_here(run, monkeypatch, plan, lambda self, plan: set())
    assert (code, status["state"], status["exit_code"]) == (1, "finished", 1)
    assert status["error"]["summary"].startswith("step_1: removed after")


def test_step_removed_while_read_is_not_a_failure(run: RunDir) -> None:
    """Removed by another host, whose status an NFS mount may show late, or by hand."""
    plan = plan_of(run, 1, 2)
    Path(plan.folder).mkdir(parents=True)
    status = StatusWriter(Path(plan.folder), training_run=run.name)
    evaluation = runner.EvaluationRunner(plan, [], status, EvaluationOutput())
    shutil.rmtree(run.training_state / "step_1")
    evaluation._fail("step_1", "FileNotFoundError: model.safetensors", "io")
    evaluation._fail("step_2", "timed out after 1 s", "timeout")
    status.close()
    assert [failure.status for failure in evaluation._failed] == ["skipped", "failed"]
    assert evaluation._failed[1] == Unfinished("step_2", 2, "failed", "timed out after 1 s", "timeout")


def test_evaluations_announce_all_paths(run: RunDir, tmp_path: Path) -> None:
    """A checkpoint below a linked root, one outside it, an adapter's base; not the root itself (the backbone)."""
    (tmp_path / "localfs").symlink_to(run.root)
    outside = tmp_path / "step_9"
    outside.mkdir()
    state = tmp_path / "localfs" / "training_runs" / "one" / "training_state"
    plan = replace(plan_of(run), root=str(tmp_path / "localfs"), base="training_runs/one/training_state/step_1/model")
    targets = [
        Target("step_0", 0, plan.root),
        Target("latest", 5, str(state / "step_latest")),
        Target("mine", 9, str(outside)),
    ]
    inside = "training_runs/one/training_state"
    assert evaluation_paths(plan, targets) == [f"{inside}/step_5", str(outside), f"{inside}/step_1/model"]


def test_killed_evaluation_releases_its_steps(make_root: Callable[[], Path]) -> None:
    root = make_root()
    cfg = write_config(root, run__total_steps=3, model__adapter="lora")
    run = train_here(root, cfg, "trained")
    folder = root / "eval_runs" / "trained_addition"
    command = [*GRPO_TRAIN, "eval", "--training-run", "trained", "--subset-frac", "0.3", "--batch-size", "4"]
    with running(command, root, run_id_of(folder)) as parent:
        status = lambda: read_json(folder / "status.json") or {}  # noqa: E731
        wait_for(lambda: status().get("pending"), "the evaluation to announce what it reads")
        assert prune_checkpoints(run, keep_last=1, keep_every=0) == []
        parent.kill()
        parent.wait()
    assert status()["pending"] == [f"training_runs/trained/training_state/step_{step}" for step in (1, 2, 3)]
    assert prune_checkpoints(run, keep_last=1, keep_every=0) == [1, 2]
