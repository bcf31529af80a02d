"""Laptops with Windows, as far as this machine can be like one. Nothing here has run on Windows."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from platformdirs import windows

from grpo_train.run_dir import create_run
from grpo_tui import cli
from remote.base import Refused
from remote.boxes import Box, add_box, load_boxes, local_box
from remote.transports import choice
from remote.transports.ssh_config import Configuration, resolve
from tests.support.engine import REPOSITORY

SSH_G = "host gpu\r\nuser me\r\nhostname 192.0.2.10\r\nport 22\r\nidentityfile C:\\Users\\me\\.ssh\\id_ed25519\r\n"
"""As OpenSSH for Windows prints it."""


def test_the_app_without_posix_modules(ssh_box: Box, root: Path, tmp_path: Path) -> None:
    """It connects over paramiko, lists runs, shows every view, and names WSL for this machine."""
    create_run(root, {"config_text": ""}, "run_here")
    boxes = add_box(tmp_path / "boxes.yaml", dataclasses.replace(ssh_box, transport="auto"))
    folders = {name: str(tmp_path / name) for name in ("XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME")}
    environment = {**os.environ, **folders, "TEXTUAL_DRIVER": "textual.drivers.headless_driver:HeadlessDriver"}
    command = [sys.executable, "-m", "tests.support.windows_laptop", str(boxes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, cwd=REPOSITORY, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    shown = json.loads(done.stdout)
    assert "Windows has no tmux: use grpo-tui inside WSL" in shown["local"]
    assert shown["demo"] == "--demo trains on this machine, but Windows has no tmux: use grpo-tui inside WSL"


def test_the_workflow_names_tests_that_exist() -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "laptops.yml").read_text())
    job = workflow["jobs"]["laptop"]
    assert job["strategy"]["matrix"]["os"] == ["windows-latest", "macos-latest"]
    paths = [word for step in job["steps"] for word in step.get("run", "").split() if word.startswith("tests/")]
    assert len(paths) > 5
    assert [path for path in paths if not (REPOSITORY / path).exists()] == []


def test_this_machine_is_not_a_box(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(choice, "sys", SimpleNamespace(platform="win32"))
    with pytest.raises(Refused, match="Windows has no tmux: use grpo-tui inside WSL"):
        choice.choose(local_box())
    assert choice.choose(Box("gpu", host="192.0.2.10"))[0] == "paramiko"
    monkeypatch.setattr("grpo_tui.dialogs.demo.sys", SimpleNamespace(platform="win32"))
    assert cli.main(["--demo"]) == 2
    assert "inside WSL" in capsys.readouterr().err


def test_the_output_of_its_ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_bytes(b"#!/bin/sh\ncat <<'END'\n" + SSH_G.encode() + b"END\n")
    ssh.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    target = resolve("gpu")
    assert (target.host, target.port, target.user) == ("192.0.2.10", 22, "me")
    assert target.identity_files == [Path(r"C:\Users\me\.ssh\id_ed25519")]
    assert Configuration.parse(SSH_G).one("hostname") == "192.0.2.10"


def test_boxes_yaml_with_its_line_ends_and_drive_letters(tmp_path: Path) -> None:
    file = tmp_path / "boxes.yaml"
    file.write_bytes(
        b"# mine\r\nboxes:\r\n  - name: gpu\r\n    host: 192.0.2.10\r\n    key: C:\\Users\\me\\.ssh\\id\r\n"
    )
    assert load_boxes(file)[0] == Box("gpu", host="192.0.2.10", key=r"C:\Users\me\.ssh\id")
    new = Box("other", host="192.0.2.11", key=r"D:\keys\id")
    add_box(file, new)
    text = file.read_bytes()
    assert text.startswith(b"# mine\r\nboxes:\r\n")
    assert text.count(b"\n") == text.count(b"\r\n") > 5
    assert load_boxes(file)[1] == new


def test_where_its_files_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The example names the folder, which is below %LOCALAPPDATA%, not below %APPDATA%."""
    monkeypatch.setenv("APPDATA", r"C:\Users\me\AppData\Roaming")
    monkeypatch.setenv("LOCALAPPDATA", r"C:\Users\me\AppData\Local")
    monkeypatch.setattr(windows, "get_win_folder", windows.get_win_folder_from_env_vars)
    folder = windows.Windows("grpo-tui").user_config_dir.replace("/", "\\")
    assert folder == r"C:\Users\me\AppData\Local\grpo-tui\grpo-tui"
    example = (REPOSITORY / "config" / "boxes.example.yaml").read_text()
    assert rf"%LOCALAPPDATA%{folder.removeprefix(os.environ['LOCALAPPDATA'])}\boxes.yaml" in example
