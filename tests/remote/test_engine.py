"""The engine's version: read from its files at hello, verified by doctor."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir.version import FORMAT, VERSION
from remote.agent.box import BoxContext
from remote.agent.doctor import doctor
from remote.agent.engine import installed_version
from remote.boxes import Box
from remote.events import BoxGreeted
from remote.protocol.box import DoctorRequest
from remote.protocol.frames import OLDEST, UNKNOWN, EngineVersion
from tests.support.agent import connected


def context(root: Path, **settings: Any) -> BoxContext:
    return BoxContext.from_settings({"root": str(root), **settings})


def program(path: Path, script: str = "exit 0") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def code(folder: Path, version: str, format_: int) -> Path:
    """The engine's sources, as far as they carry a version."""
    file = folder / "grpo_train" / "run_dir" / "version.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'"""Version."""\n\nVERSION = "{version}"\nFORMAT = {format_}\n"""Of rows."""\n')
    return folder


def engine_check(root: Path, **settings: Any) -> dict[str, Any]:
    checks = doctor(context(root, **settings), DoctorRequest())["checks"]
    return next(check for check in checks if check["name"] == "engine")


def test_the_version_of_this_environment(tmp_path: Path) -> None:
    assert installed_version(context(tmp_path, engine=[sys.executable])) == EngineVersion(VERSION, FORMAT)


def test_the_version_of_an_installed_engine(tmp_path: Path) -> None:
    engine = program(tmp_path / "env/bin/grpo-train")
    code(tmp_path / "env/lib/python3.12/site-packages", "0.3.0", 3)
    (tmp_path / "linked").symlink_to(engine)
    for command in (engine, tmp_path / "linked"):
        assert installed_version(context(tmp_path, engine=[str(command)])) == EngineVersion("0.3.0", 3)


def test_the_version_of_an_editable_install(tmp_path: Path) -> None:
    """Its metadata keeps the version of the day it was installed."""
    engine = program(tmp_path / "env/bin/grpo-train")
    info = tmp_path / "env/lib/python3.12/site-packages/grpo_tui-0.1.0.dist-info"
    info.mkdir(parents=True)
    checkout = code(tmp_path / "check out", "0.2.0", 2)
    (info / "direct_url.json").write_text(json.dumps({"url": checkout.as_uri(), "dir_info": {"editable": True}}))
    assert installed_version(context(tmp_path, engine=[str(engine)])) == EngineVersion("0.2.0", 2)


def test_the_flat_layout_is_the_oldest_version(tmp_path: Path) -> None:
    program(tmp_path / ".venv/bin/grpo-train")
    (tmp_path / "grpo_train").mkdir()
    (tmp_path / "grpo_train" / "run_dir.py").write_text("")
    assert installed_version(context(tmp_path, repo=str(tmp_path))) == OLDEST


def test_a_version_that_is_not_found_is_unknown(tmp_path: Path) -> None:
    assert installed_version(context(tmp_path, engine=["/no/such"])) == UNKNOWN
    assert installed_version(context(tmp_path, engine=[str(program(tmp_path / "engine"))])) == UNKNOWN
    assert installed_version(context(tmp_path, activate="true", repo=str(tmp_path))) == UNKNOWN


def test_hello_carries_the_engine_version(box: Box, tmp_path: Path) -> None:
    repo = code(tmp_path / "repo", "0.3.0", 3)
    with connected(dataclasses.replace(box, repo=str(repo))) as (_, recorder):
        assert recorder.wait_for(BoxGreeted).engine == EngineVersion("0.3.0", 3)


@pytest.mark.parametrize(
    ("script", "ok", "detail", "hint"),
    [
        (f"echo 'grpo-train {VERSION} (format {FORMAT})'", True, VERSION, ""),
        ("echo 'No such option: --version' >&2; exit 2", True, "0.1.0", ""),
        ("echo 'grpo-train 9.0.0 (format 99)'", False, f"box engine 9.0.0, app {VERSION}", "upgrade this program"),
        ("echo 'grpo-train 0.0.1 (format 0)'", False, f"box engine 0.0.1, app {VERSION}", "make setup-box"),
        ("echo 'no module named typer' >&2; exit 1", False, "no module named typer", "on the box"),
    ],
)
def test_doctor_runs_the_engine(tmp_path: Path, script: str, ok: bool, detail: str, hint: str) -> None:
    engine = program(tmp_path / "engine", f'[ "$1" = --version ] || exit 9\n{script}')
    check = engine_check(tmp_path, engine=[str(engine)])
    assert check["ok"] is ok
    assert detail in check["detail"]
    assert hint in check["hint"]


@pytest.mark.parametrize(
    ("script", "ok", "detail"),
    [
        ("echo 'NVIDIA H200, driver 580.65'", True, "NVIDIA H200"),
        ("echo 'error: driver 470 is too old for torch 2.11' >&2; exit 1", False, "driver 470 is too old"),
        ("echo 'No such command' >&2; exit 2", True, "not reported"),
    ],
)
def test_doctor_names_the_training_device(tmp_path: Path, script: str, ok: bool, detail: str) -> None:
    engine = program(tmp_path / "engine", f'[ "$1" = device ] || exit 9\n{script}')
    checks = doctor(context(tmp_path, engine=[str(engine)]), DoctorRequest())["checks"]
    check = next(check for check in checks if check["name"] == "device")
    assert check["ok"] is ok
    assert detail in check["detail"]
