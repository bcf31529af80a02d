"""``grpo-train sweep``: several configs in sequence, and their comparison."""

from __future__ import annotations

import csv
import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config import load_config
from grpo_train.run_dir import RunDirError, create_run
from grpo_train.run_dir.processes import run_id_of
from grpo_train.supervisor.sweep import SweepError, run_sweep
from tests.support import micro
from tests.support.engine import GRPO_TRAIN, command_here, events, grpo_train, run_of, running, wait_for, write_config
from tests.support.patience import PATIENCE

make_root, tiny_model = micro.make_root, micro.tiny_model


def sweep(root: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    return grpo_train("sweep", *arguments, root=root, timeout=240)


def test_a_stopped_sweep_resumes_and_compares(root: Path, tmp_path: Path) -> None:
    short = write_config(tmp_path, "short.yaml", run__total_steps=2)
    long = write_config(tmp_path, "long.yaml", run__total_steps=400, run__save_every=400)
    command = [*GRPO_TRAIN, "sweep", str(short), str(long), "--name", "two", "--set", "run.seed=5"]
    with running(command, root, run_id_of(root / "training_runs" / "two_long")) as process:
        wait_for(lambda: len(list(run_of(root, "two_long").read_log("train_log.jsonl"))) > 1, "the second run's steps")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60 * PATIENCE) == 130
    assert run_of(root, "two_long").observed_state().state == "stopped"

    other = command_here("sweep", short, "--name", "two", root=root)
    assert other.returncode == 2
    assert "is a sweep of other configs" in other.stderr

    (run := run_of(root, "two_long")).config_file.write_text(
        run.config_file.read_text().replace("total_steps: 400", f"total_steps: {run.last_step_row()['step'] + 1}")
    )
    again = sweep(root, short, long, "--name", "two", "--set", "run.seed=5")
    assert again.returncode == 0, again.stderr
    assert "two_short is finished" in again.stdout
    assert events(run).count("resumed") == 1
    with (root / "sweeps" / "two" / "comparison.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["config"], row["run"], row["state"]) for row in rows] == [
        ("short", "two_short", "finished"),
        ("long", "two_long", "finished"),
    ]
    lines = list(run_of(root, "two_short").read_log("train_log.jsonl"))
    assert float(rows[0]["reward"]) == pytest.approx(lines[-1]["reward"])
    assert float(rows[0]["best_reward"]) == pytest.approx(max(line["reward"] for line in lines))
    assert json.loads((root / "sweeps" / "two" / "sweep.json").read_text())["overrides"] == ["run.seed=5"]
    assert run_of(root, "two_short").summary()["sweep"] == "two"
    assert load_config(run_of(root, "two_short").config_file.read_text()).run.seed == 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task__name": "adition"}, "did you mean addition?"),
        ({"backup__every_save": True}, "no destination for backups"),
    ],
)
def test_a_bad_config_fails_before_any_run(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    good, bad = write_config(tmp_path, "good.yaml"), write_config(tmp_path, "bad.yaml", **changes)
    result = command_here("sweep", good, bad, "--name", "x", "--json", root=root)
    assert (result.returncode, result.stdout) == (2, ""), "notes are not JSON"
    assert message in result.stderr
    assert not (root / "training_runs").exists() or not list((root / "training_runs").iterdir())
    same = command_here("sweep", good, tmp_path / "sub" / ".." / "good.yaml", root=root)
    assert same.returncode == 2
    assert "have the same name" in same.stderr


def test_a_run_without_a_checkpoint_restarts(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "short.yaml", run__total_steps=2)
    launch = {"time": "2025-08-19T12:35:07.412Z", "config_text": config.read_text(), "overrides": []}
    create_run(root, launch, "killed_short").log_event("started", step=0)
    result = sweep(root, config, "--name", "killed")
    assert result.returncode == 0, result.stderr
    assert "killed_short has no checkpoint; restarting it" in result.stdout
    assert run_of(root, "killed_short").observed_state().state == "finished"
    (aside,) = (root / "training_runs").glob("killed_short.*")
    assert "started" in (aside / "logs" / "events.jsonl").read_text(), "the old files are kept"


def test_a_live_run_is_refused(root: Path, tmp_path: Path) -> None:
    """It belongs to another sweep of the same name, or is left from a killed one."""
    config = write_config(tmp_path, "a.yaml")
    create_run(root, {"config_text": config.read_text(), "overrides": []}, "two_a")  # just created: it is starting
    with pytest.raises(SweepError, match=r"two_a is starting, .*grpo-train stop --training-run two_a"):
        run_sweep(root, [config], [], "two")
    assert not (root / "sweeps").exists()


@pytest.mark.parametrize("name", ["../x", "s w", "x" * 127])
def test_a_bad_name_fails_before_any_file(root: Path, tmp_path: Path, name: str) -> None:
    before = set(root.rglob("*"))
    with pytest.raises(RunDirError, match="invalid run name"):
        run_sweep(root, [write_config(tmp_path, "a.yaml")], [], name)
    assert not (root / "sweeps").exists()
    assert not {path for path in set(root.rglob("*")) - before if path.is_file()}


def test_changed_keys_of_a_launched_run_are_refused(root: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path, "a.yaml", run__total_steps=2)
    create_run(root, {"config_text": config.read_text(), "overrides": ["run.seed=5"]}, "two_a")
    message = r"since two_a was launched \(run.total_steps was 2, is now 4\); choose another --name"
    with pytest.raises(SweepError, match=message):
        run_sweep(root, [config], ["run.seed=5", "run.total_steps=4"], "two")
    config.write_text(config.read_text().replace("total_steps: 2", "total_steps: 3"))
    with pytest.raises(SweepError, match=r"run\.seed was 5, is now 3"):
        run_sweep(root, [config], [], "two")
