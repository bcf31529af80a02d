"""Damaged checkpoints are found before training starts, however it is started, and the message gives the fix."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_train.cli import app
from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import atomic_symlink
from grpo_train.run_dir.manifest import weights_problem
from grpo_train.supervisor import process, supervisor
from grpo_train.supervisor.stages import Stage
from grpo_train.supervisor.supervisor import Supervisor
from grpo_train.train.worker import main
from tests.support.engine import DAMAGES, config_text, damage, events, resume_here, run_of
from tests.support.saving import make_trainer

TOTAL = 4


@pytest.fixture(scope="module")
def saved(make_root: Callable[[], Path]) -> RunDir:
    """Steps 1 to 3 of 4, saved without training."""
    root = make_root()
    trainer = make_trainer(root / "models" / "tiny", "lora")
    run = create_run(root, {"time": "2020-01-01T00:00:00Z"}, "one")  # older than a run that is starting
    run.config_file.write_text(config_text(model__adapter="lora", run__total_steps=TOTAL, run__max_restarts=3))
    for step in (1, 2, 3):
        trainer.save(run, step)
    return run


@pytest.fixture
def run(saved: RunDir, tmp_path: Path) -> RunDir:
    """A copy to damage."""
    root = tmp_path / "root"
    (root / "training_runs").mkdir(parents=True)
    (root / "models").symlink_to(saved.root / "models")
    shutil.copytree(saved.path, root / "training_runs" / "one", symlinks=True)
    return run_of(root, "one")


# Each returns the error message of the start.
Way = Callable[[RunDir, pytest.MonkeyPatch, pytest.CaptureFixture[str]], str]


def by_resume(run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    done = CliRunner().invoke(app, ["resume", "--training-run", "one", "--root", str(run.root)])
    assert done.exit_code == 2, done.output
    return done.stderr


def by_restart(run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """The trainer (another program here) dies; without the damage the supervisor would restart it three times."""
    monkeypatch.setattr(supervisor, "become_subreaper", lambda: None)
    monkeypatch.setattr(process, "reap_orphans", lambda: None)
    monkeypatch.setattr(Stage, "command", lambda *_: [sys.executable, "-c", "raise SystemExit(7)"])
    config = load_config(run.config_file.read_text())
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        assert Supervisor(run, config).run() == 1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    status = run.read_status() or {}
    assert (status["state"], status["restarts"]) == ("crashed", 0)
    assert status["error"]["summary"].startswith("the training process ended with exit code 7; cannot restart: ")
    return str(status["error"]["summary"])


def by_module(run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    assert main(["--run-dir", str(run.path)]) == 1
    error = capfd.readouterr().err
    assert "Traceback" not in error
    return error


WAYS: dict[str, Way] = {
    "grpo-train resume": by_resume,
    "a supervisor's restart": by_restart,
    "python -m grpo_train.train --run-dir": by_module,
}


def start_error(run: RunDir, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    before = sorted(os.listdir(run.training_state))
    message = WAYS[way](run, monkeypatch, capfd)
    assert sorted(os.listdir(run.training_state)) == before
    assert "training" not in events(run), "nothing was trained"
    return message


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_found_before_training(
    run: RunDir, how: str, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    problem = damage(run.training_state / "step_3", how)
    message = start_error(run, way, monkeypatch, capfd)
    assert f"{run.training_state / 'step_3'} cannot be used: {problem}" in message
    assert "(other complete steps: 1, 2; newest complete: step_2; resume with --from-step 2)" in message


@pytest.mark.parametrize("way", WAYS)
def test_dangling_step_latest_is_an_error(
    run: RunDir, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run.training_state / "step_3")
    message = start_error(run, way, monkeypatch, capfd)
    assert "step_latest points to step_3, which does not exist (other complete steps: 1, 2; " in message
    assert "newest complete: step_2; resume with --from-step 2)" in message


@pytest.mark.parametrize("way", WAYS)
def test_lagging_step_latest_does_not_hide_damage(
    run: RunDir, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A kill between a save's last two renames leaves step_latest one step behind; the newer step is resumed."""
    atomic_symlink(run.training_state / "step_latest", "step_1")
    resume_point = run.resume_point()
    assert resume_point is not None
    assert resume_point.step == 3
    problem = damage(run.training_state / "step_3", "bit flip")
    message = start_error(run, way, monkeypatch, capfd)
    assert problem in message
    assert "newest complete: step_2" in message


def test_suggested_step_is_complete_and_resumes(run: RunDir) -> None:
    """Two steps are damaged, one of them only detectable by its checksum."""
    damage(run.training_state / "step_3", "truncated")
    damage(run.training_state / "step_2", "bit flip")
    done = CliRunner().invoke(app, ["resume", "--training-run", "one", "--root", str(run.root)])
    assert "(other complete steps: 1; newest complete: step_1; resume with --from-step 1)" in done.stderr
    resume_here(run, "1", TOTAL)
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 2, 3, 4]
    (attic,) = (run.training_state / "superseded").iterdir()
    assert sorted(os.listdir(attic)) == ["step_2", "step_3"]


def test_no_complete_step_is_reported(run: RunDir) -> None:
    for step in (1, 2, 3):
        damage(run.training_state / f"step_{step}", "bit flip")
    done = CliRunner().invoke(app, ["resume", "--training-run", "one", "--root", str(run.root)])
    assert done.stderr.rstrip().endswith("(no other complete steps)")


def test_unreadable_file_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad_sector(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("grpo_train.run_dir.manifest.sha256", bad_sector)
    reason = weights_problem(run.training_state / "step_3")
    assert reason.endswith("cannot be read: Input/output error")


# ------------------------------------------------------------------------------------------------- starting weights


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_step_gives_no_weights(run: RunDir, how: str) -> None:
    message = damage(run.training_state / "step_3", how)
    for name in ("step_3", "step_latest"):
        reason = weights_problem(run.training_state / name)
        assert reason.startswith(message)
        assert reason.endswith(f"(newest complete: {run.training_state / 'step_2'})")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["step_3", "step_3/model", "step_latest"])
def test_damaged_step_does_not_start_a_run(run: RunDir, how: str, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    """``--ckpt`` of both programs that make a run."""
    message = damage(run.training_state / "step_3", how)
    arguments = ["--cfg", str(run.config_file), "--ckpt", str(run.training_state / name), "--root", str(run.root)]
    done = CliRunner().invoke(app, ["train", *arguments])
    assert (done.exit_code, main(arguments)) == (2, 1)
    for error in (done.stderr, capfd.readouterr().err):
        assert f"cannot be used: {message}" in error
        assert f"(newest complete: {run.training_state / 'step_2'})" in error
    assert os.listdir(run.root / "training_runs") == ["one"]


def test_dangling_link_is_not_a_fresh_start(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        shutil.rmtree(run.training_state / f"step_{step}")
    assert main(["--run-dir", str(run.path)]) == 1
    assert "step_latest points to step_3, which does not exist (no other complete steps)" in capfd.readouterr().err
    assert "training" not in events(run)


def test_dangling_link_gives_no_weights(run: RunDir, tmp_path: Path) -> None:
    shutil.rmtree(run.training_state / "step_3")
    reason = weights_problem(run.training_state / "step_latest")
    assert reason == f"it points to step_3, which does not exist (newest complete: {run.training_state / 'step_2'})"


def test_models_without_a_manifest_are_accepted(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.training_state / "step_3" / "model", tmp_path / "step_3")
    assert weights_problem(tmp_path / "step_3") == ""
    assert weights_problem(run.training_state / "step_3") == ""
