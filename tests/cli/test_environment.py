"""Variables from ``.env``: read by every program of the engine, listed without their values."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from grpo_train.config import environment
from tests.support.canaries import canary, write_private
from tests.support.engine import environment as user
from tests.support.engine import write_config
from tests.support.forked import run_forked
from tests.support.patience import PATIENCE


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """``python -m WORDS`` of a user whose home is ``folder/home``."""
    mine = {name: value for name, value in user().items() if name not in ("MY_OWN", "WANDB_API_KEY", "NOTIFY_URL")}
    return run_forked(words, {**mine, "HOME": str(folder / "home"), **variables}, folder, 60 * PATIENCE)


def test_where_each_variable_comes_from(tmp_path: Path, home: Path) -> None:
    """The environment wins, then the working directory, then the account's file."""
    secrets = {name: canary() for name in "abcd"}
    account = f"WANDB_API_KEY={secrets['a']}\nMY_OWN={secrets['b']}\nNOTIFY_URL={secrets['c']}\n"
    there = write_private(home / ".grpo" / ".env", account)
    here = write_private(tmp_path / ".env", f"MY_OWN={secrets['d']}\n")
    done = run(tmp_path, "grpo_train.cli", "env", "--json", NOTIFY_URL="x", HF_HOME="/hf")
    found = json.loads(done.stdout)
    sources = {row["name"]: row["source"] for row in found["variables"]}
    wanted = {"WANDB_API_KEY": str(there), "MY_OWN": str(here), "NOTIFY_URL": "environment", "HF_HOME": "environment"}
    assert {name: sources[name] for name in wanted} == wanted
    assert found["files"] == [{"path": str(file), "exists": True, "problem": ""} for file in (here, there)]
    here.unlink()
    there.chmod(0o644)
    shown = run(tmp_path, "grpo_train.cli", "env")
    assert f"{there}: other accounts can read it: chmod 600 {there}" in shown.stdout
    assert f"{here}: no such file" in shown.stdout
    assert "MY_OWN" in shown.stdout
    assert not [value for value in secrets.values() if value in done.stdout + done.stderr + shown.stdout]


def test_a_plain_training_process_reads_it(tmp_path: Path, home: Path) -> None:
    """What ``torchrun -m grpo_train.train`` starts, in any directory: here, the root comes from the file."""
    write_private(home / ".grpo" / ".env", f"LOCALFS_ROOT={tmp_path / 'root'}\n")
    cfg = write_config(tmp_path, run__total_steps=1)
    done = run(tmp_path, "grpo_train.train", "--cfg", str(cfg), "--run-name", "one")
    assert f"no tiny model at {tmp_path / 'root'}" in done.stderr


def test_a_file_that_cannot_be_read_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    file = write_private(home / ".grpo" / ".env", "")
    file.write_bytes(b"MY_OWN=\xff\n")
    environment.load_environment()
    assert capsys.readouterr().err == f"warning: {file} is ignored: it is not UTF-8\n"
