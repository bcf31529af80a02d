"""Whatever happened to a checkpoint, and however training is started on it: found first, and the way out is named."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_train.cli.commands import app
from grpo_train.config import load_config
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.files import atomic_symlink
from grpo_train.run_dir.manifest import weights_problem
from grpo_train.supervisor import supervisor
from grpo_train.supervisor.stages import Stage
from grpo_train.supervisor.supervisor import Supervisor
from grpo_train.train.worker import main
from tests.support.engine import DAMAGES, config_text, damage, events, resume_here, run_of
from tests.support.saving import make_trainer

TOTAL = 4


@pytest.fixture(scope="module")
def saved(make_root: Callable[[], Path]) -> RunDir:
    """Steps 1 to 3 of 4, nothing trained."""
    root = make_root()
    trainer = make_trainer(root / "models" / "tiny", "lora")
    run = create_run(root, {"time": "2020-01-01T00:00:00Z"}, "one")  # not just now: it would still be starting
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


# Each returns the words with which the start was refused.
Way = Callable[[RunDir, pytest.MonkeyPatch, pytest.CaptureFixture[str]], str]


def by_resume(run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    done = CliRunner().invoke(app, ["resume", "--training-run", "one", "--root", str(run.root)])
    assert done.exit_code == 2, done.output
    return done.stderr


def by_restart(run: RunDir, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """The trainer dies (it is another program here); the supervisor would restart it three times."""
    for name in ("become_subreaper", "reap_orphans"):
        monkeypatch.setattr(supervisor, name, lambda: None)
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
    assert status["error"]["summary"].startswith("the training process ended with exit code 7; it cannot restart: ")
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


def assert_refused(run: RunDir, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    before = sorted(os.listdir(run.training_state))
    said = WAYS[way](run, monkeypatch, capfd)
    assert sorted(os.listdir(run.training_state)) == before
    assert "training" not in events(run), "nothing was trained"
    return said


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", DAMAGES)
def test_damage_is_found_before_training_starts(
    run: RunDir, how: str, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    message = damage(run.training_state / "step_3", how)
    said = assert_refused(run, way, monkeypatch, capfd)
    assert f"{run.training_state / 'step_3'} cannot be used: {message}" in said
    assert "(other complete steps: 1, 2; newest complete: step_2; resume with --from-step 2)" in said


@pytest.mark.parametrize("way", WAYS)
def test_a_link_to_a_step_that_is_gone_is_no_start(
    run: RunDir, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(run.training_state / "step_3")
    said = assert_refused(run, way, monkeypatch, capfd)
    assert "step_latest points to step_3, which does not exist (other complete steps: 1, 2; " in said
    assert "newest complete: step_2; resume with --from-step 2)" in said


@pytest.mark.parametrize("way", WAYS)
def test_a_link_that_lags_behind_hides_no_damage(
    run: RunDir, way: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A kill between a save's last renames leaves it so: the step it does not point at yet is what goes on."""
    atomic_symlink(run.training_state / "step_latest", "step_1")
    resume_point = run.resume_point()
    assert resume_point is not None
    assert resume_point.step == 3
    message = damage(run.training_state / "step_3", "bit flip")
    said = assert_refused(run, way, monkeypatch, capfd)
    assert message in said
    assert "newest complete: step_2" in said


def test_the_step_that_is_named_is_whole_to_its_last_byte_and_goes_on(run: RunDir) -> None:
    """Two are damaged, one so that only its checksum tells."""
    damage(run.training_state / "step_3", "truncated")
    damage(run.training_state / "step_2", "bit flip")
    done = CliRunner().invoke(app, ["resume", "--training-run", "one", "--root", str(run.root)])
    assert "(other complete steps: 1; newest complete: step_1; resume with --from-step 1)" in done.stderr
    resume_here(run, "1", TOTAL)
    assert [checkpoint.step for checkpoint in run.checkpoints()] == [1, 2, 3, 4]
    (attic,) = (run.training_state / "superseded").iterdir()
    assert sorted(os.listdir(attic)) == ["step_2", "step_3"]


def test_where_nothing_is_whole_that_is_said(run: RunDir) -> None:
    for step in (1, 2, 3):
        damage(run.training_state / f"step_{step}", "bit flip")
    done = CliRunner().invoke(app, ["resume", "--training-run", "one", "--root", str(run.root)])
    assert done.stderr.rstrip().endswith("(no other complete steps)")


def test_a_file_that_cannot_be_read_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def bad_sector(path: Path) -> str:
        raise OSError(5, "Input/output error", str(path))

    monkeypatch.setattr("grpo_train.run_dir.manifest.sha256", bad_sector)
    reason = weights_problem(run.training_state / "step_3")
    assert reason.endswith("cannot be read: Input/output error")


# ------------------------------------------------------------------------------------- weights from another's step


@pytest.mark.parametrize("how", DAMAGES)
def test_weights_are_not_taken_from_a_damaged_step(run: RunDir, how: str) -> None:
    message = damage(run.training_state / "step_3", how)
    for name in ("step_3", "step_latest"):
        reason = weights_problem(run.training_state / name)
        assert reason.startswith(message)
        assert reason.endswith(f"(newest complete: {run.training_state / 'step_2'})")


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["step_3", "step_3/model", "step_latest"])
def test_a_run_does_not_start_from_a_damaged_step(
    run: RunDir, how: str, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """``--ckpt``, by both programs that make a run."""
    message = damage(run.training_state / "step_3", how)
    arguments = ["--cfg", str(run.config_file), "--ckpt", str(run.training_state / name), "--root", str(run.root)]
    done = CliRunner().invoke(app, ["train", *arguments])
    assert (done.exit_code, main(arguments)) == (2, 1)
    for said in (done.stderr, capfd.readouterr().err):
        assert f"cannot be used: {message}" in said
        assert f"(newest complete: {run.training_state / 'step_2'})" in said
    assert os.listdir(run.root / "training_runs") == ["one"]


def test_a_link_to_nothing_is_no_fresh_start(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    for step in (1, 2, 3):
        shutil.rmtree(run.training_state / f"step_{step}")
    assert main(["--run-dir", str(run.path)]) == 1
    assert "step_latest points to step_3, which does not exist (no other complete steps)" in capfd.readouterr().err
    assert "training" not in events(run)


def test_weights_are_not_taken_through_a_link_to_nothing(run: RunDir, tmp_path: Path) -> None:
    shutil.rmtree(run.training_state / "step_3")
    reason = weights_problem(run.training_state / "step_latest")
    assert reason == f"it points to step_3, which does not exist (newest complete: {run.training_state / 'step_2'})"


def test_a_model_of_somebody_else_has_no_manifest_and_is_taken(run: RunDir, tmp_path: Path) -> None:
    shutil.copytree(run.training_state / "step_3" / "model", tmp_path / "step_3")
    assert weights_problem(tmp_path / "step_3") == ""
    assert weights_problem(run.training_state / "step_3") == ""
