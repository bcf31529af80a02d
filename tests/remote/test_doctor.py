"""Findings of the box's doctor: each level, and commands that fix what they name."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import StatusWriter, create_run
from remote.agent.box import BoxContext
from remote.agent.doctor import CHECKS, doctor
from remote.protocol.box import DoctorRequest
from tests.support.backups import make_run, set_state


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("LOCALFS_ROOT", raising=False)


def finding(name: str, root: Path, text: str = "", **settings: Any) -> dict[str, Any]:
    box = BoxContext.from_settings({"root": str(root), **settings})
    only = {name: CHECKS[name]} if name in CHECKS else {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("remote.agent.doctor.CHECKS", only)
        (check,) = doctor(box, DoctorRequest(text))["checks"]
    return check


def fixed(check: dict[str, Any]) -> None:
    subprocess.run(check["fix"], shell=True, check=True)


@pytest.mark.parametrize("place", ["repo/localfs", "localfs"])
def test_runs_below_another_root(root: Path, tmp_path: Path, place: str) -> None:
    other, repo = tmp_path / place, tmp_path / "repo"
    if other == root:
        root = tmp_path / "elsewhere"
        root.mkdir()
    assert finding("roots", root, repo=str(repo))["level"] == "ok"
    run = make_run(other, "lost", 2)
    set_state(run, "stopped")
    check = finding("roots", root, repo=str(repo))
    assert (check["level"], check["ok"]) == ("warning", False)
    assert f"1 runs are under {other}" in check["detail"]
    fixed(check)
    assert (root / "training_runs" / "lost" / "launch.json").exists()
    assert finding("roots", root, repo=str(repo))["level"] == "ok"


def test_a_live_run_is_not_moved(root: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "repo" / "localfs", "one", 2)
    StatusWriter(run.path).update(state="running")
    check = finding("roots", root, repo=str(tmp_path / "repo"))
    assert run.observed_state().is_live
    assert (check["level"], check["fix"], "wait until one has ended" in check["hint"]) == ("warning", "", True)


def test_a_root_that_is_a_link_is_the_same_root(root: Path, tmp_path: Path) -> None:
    make_run(root, "one", 2)
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "localfs").symlink_to(root)
    assert finding("roots", root, repo=str(tmp_path / "repo"))["level"] == "ok"


def test_runs_that_others_can_change(root: Path) -> None:
    run = create_run(root, {}, "one")
    assert finding("owners", root)["level"] == "ok"
    (run.path / "launch.json").chmod(0o666)
    check = finding("owners", root)
    assert (check["level"], "launch.json can be changed by other accounts" in check["detail"]) == ("warning", True)
    assert finding("owners", root, umask="000")["level"] == "ok"
    fixed(check)
    assert finding("owners", root)["level"] == "ok"


def test_an_older_engine_estimates_no_checkpoints(root: Path, tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text("#!/bin/sh\necho '{}'\n")
    engine.chmod(0o755)
    check = finding("checkpoints", root, "run: {total_steps: 9}", engine=[str(engine)])
    assert (check["level"], "does not estimate their size" in check["detail"]) == ("warning", True)


@pytest.mark.parametrize(
    ("size", "count", "free", "level"),
    [
        (10, 3, 100, "ok"),
        (10, 11, 100, "warning"),
        (60, 2, 100, "error"),
        (None, 2, 100, "warning"),
    ],
)
def test_checkpoints_of_a_config_against_the_disk(
    root: Path, tmp_path: Path, size: int | None, count: int, free: int, level: str
) -> None:
    plan = json.dumps({"checkpoint_bytes": size, "checkpoints": count, "free_bytes": free})
    engine = tmp_path / "engine"
    engine.write_text(f'#!/bin/sh\n[ "$1" = plan ] || exit 9\ngrep -q total_steps "$3" && echo \'{plan}\'\n')
    engine.chmod(0o755)
    check = finding("checkpoints", root, "run: {total_steps: 9}", engine=[str(engine)])
    assert check["level"] == level, check
    assert ("clean --root" in check["fix"]) == (level != "ok" and size is not None)
    assert ("unknown" in check["detail"]) == (size is None)


def test_missing_programs_have_a_command(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "check out" / "config").mkdir(parents=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {name: finding(name, root, repo=str(tmp_path / "check out")) for name in ("tmux", "engine")}
    assert found["tmux"]["fix"] == "sudo apt-get install -y tmux"
    assert found["engine"]["fix"] == f"cd '{tmp_path}/check out' && make setup-box"
    assert {check["level"] for check in found.values()} == {"error"}
