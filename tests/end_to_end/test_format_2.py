"""Files that commit 8952e10 (version 0.2.0, format 2) wrote: today's programs read them and continue from them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from grpo_train.cli import app
from grpo_train.history.database import Database
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import read_json
from grpo_train.train.resume import library_versions
from grpo_tui.box.unanswered import UnansweredRequests
from grpo_tui.files import Preferences
from remote.agent.box import BoxContext
from remote.agent.operations import list_runs, show_run
from remote.boxes import Box, load_boxes
from remote.protocol.runs import ListRunsRequest, ShowRunRequest
from tests.support.data import FIXTURES
from tests.support.engine import resume_here, rows, run_of, steps_logged, without_time

FORMAT_2 = FIXTURES / "format_2"
STEPS = {"full": 2, "lora": 3, "self_play": 2, "curriculum": 2, "mixture": 2}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return shutil.copytree(FORMAT_2 / "root", tmp_path / "root", symlinks=True)


@pytest.fixture
def laptop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The app's files, where platformdirs looks for them."""
    for kind in ("config", "state", "data"):
        shutil.copytree(FORMAT_2 / "laptop" / kind, tmp_path / kind / "grpo-tui")
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", str(tmp_path / kind))
    return tmp_path


def grpo_train(*words: object) -> str:
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_shell_reads_runs(root: Path) -> None:
    listed = json.loads(grpo_train("runs", "--json", "--root", root))
    assert {row["run"]: (row["state"], row["step"]) for row in listed} == {
        name: ("finished", step) for name, step in STEPS.items()
    }


def test_the_agent_reads_runs_and_evaluations(root: Path) -> None:
    box = BoxContext.from_settings({"root": str(root)})
    assert {row["run"]: row["step"] for row in list_runs(box, ListRunsRequest())["runs"]} == STEPS
    (evaluation,) = show_run(box, ShowRunRequest("full"))["evaluations"]
    assert [(row["step"], row["status"]) for row in evaluation["metrics"]] == [("0", "ok"), ("1", "ok"), ("2", "ok")]


def test_evaluations_are_compared(root: Path) -> None:
    shown = grpo_train("compare", "--training-run", "full", "--steps", "0,2", "--root", root)
    assert "0 gained, 0 lost of 8" in shown


@pytest.mark.parametrize("name", STEPS)
def test_checkpoints_are_resumed(root: Path, name: str) -> None:
    run, last = run_of(root, name), STEPS[name]
    config = run.config_file.read_text()
    run.config_file.write_text(config.replace(f"total_steps: {last}\n", f"total_steps: {last + 1}\n"))
    resume_here(run, total=last + 1)
    assert steps_logged(run)[-1] == last + 1
    assert run.checkpoint("latest", deep=True).step == last + 1


def test_a_resumed_step_is_the_same_step(root: Path, tmp_path: Path) -> None:
    """Bit for bit each time here. Against the step that was recorded, as near as another processor rounds; with other
    libraries, completions may differ."""
    other = shutil.copytree(root, tmp_path / "again", symlinks=True)
    run = run_of(root, "self_play")
    recorded, row = weights_of(run), rows(run)[1]
    written_by = (read_json(run.training_state / "step_2" / "training_info.json") or {})["versions"]
    resume_here(run, "1", total=2)
    twice = run_of(other, "self_play")
    resume_here(twice, "1", total=2)
    again = weights_of(run)
    assert all(torch.equal(value, again[name]) for name, value in weights_of(twice).items())
    assert without_time(rows(run)[1]) == without_time(rows(twice)[1])
    if written_by == library_versions():
        torch.testing.assert_close(again, recorded, rtol=0, atol=1e-7)
        assert json.loads(without_time(rows(run)[1])) == {
            name: pytest.approx(value, rel=1e-4) if isinstance(value, float) else value
            for name, value in json.loads(without_time(row)).items()
        }
    assert steps_logged(run) == [1, 2]


def weights_of(run: RunDir) -> dict[str, torch.Tensor]:
    return load_file(run.training_state / "step_2" / "model" / "model.safetensors")


def test_backups_are_restored(tmp_path: Path, laptop: Path) -> None:
    (laptop / "config" / "grpo-tui" / "backup.yaml").write_text(
        f"destinations:\n  - {{name: disk, folder: {shutil.copytree(FORMAT_2 / 'backup', tmp_path / 'disk')}}}\n"
    )
    (root := tmp_path / "new").mkdir()
    for name in ("full", "lora"):
        grpo_train("restore", "--training-run", name, "--root", root)
        run = run_of(root, name)
        assert run.checkpoint("latest", deep=True).step == STEPS[name]
        original = run_of(FORMAT_2 / "root", name)
        for log in ("train_log.jsonl", "rollouts.jsonl"):
            assert (run.logs / log).read_bytes() == (original.logs / log).read_bytes()
    assert (root / "eval_runs" / "full_addition" / "consolidated_metrics.csv").is_file()


def test_the_app_reads_its_files(laptop: Path) -> None:
    (box,) = (box for box in load_boxes() if box.name == "near")
    assert (box.root, box.price_per_hour) == ("/lambda/nfs/localfs", 2.49)
    preferences = Preferences.load()
    assert (preferences.box, preferences.runs) == ("near", {"near /lambda/nfs/localfs": "curriculum"})
    (request,) = UnansweredRequests().of(Box("near", kind="local", root="/lambda/nfs/localfs"))
    assert (request.op, request.target) == ("launch", "later")
    database = Database(laptop / "data" / "grpo-tui" / "history.sqlite")
    assert {record.name for record in database.records()} == STEPS.keys()
