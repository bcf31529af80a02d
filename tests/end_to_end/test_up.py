"""``grpo-tui up``: from an empty home directory behind an sshd to the first step, with the commit of this checkout.

The box is an instance that is found by its name, as docs/boxes.md walks through it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from remote.boxes import Box
from remote.providers.provider import Provider
from tests.remote.test_shell import Shell
from tests.support.engine import REPOSITORY
from tests.support.lambda_api import LambdaApi, instance
from tests.support.sshd import Sshd

QUICK = ["run.total_steps=500", "rollout.buffer_size=8", "rollout.num_generations=4", "rollout.max_completion_length=8"]


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout on the laptop."""
    folder = tmp_path / "grpo-tui"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
    monkeypatch.chdir(folder)
    return folder


OFFLINE = {"UV_OFFLINE": "1"}
"""Installs from uv's cache alone."""


def packages() -> dict[str, str]:
    """Variables with which the box finds this machine's uv, its cache and its index."""
    uv = shutil.which("uv") or str(REPOSITORY / ".uv" / "bin" / "uv")
    cache = subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip()
    passed = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "SSL_CERT_"))}
    return {**passed, "PATH": f"{Path(uv).parent}:$PATH", "UV_CACHE_DIR": cache}


def test_from_a_bare_machine_to_the_first_step(
    clone: Path, root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk of the runs is the one that outlives the box: it has the tiny model."""
    bring_up(root, tmp_path, capsys, monkeypatch)


def bring_up(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``grpo-tui up`` twice, from a clone as the working directory."""
    variables = packages()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("grpo_tui.shell.person.accept_host_key", lambda question: True)
    words = ["up", "--run-name", "first", "--key", "k", *(word for change in QUICK for word in ("--set", change))]
    run = root / "training_runs" / "first"
    with Sshd(tmp_path / "box") as sshd, LambdaApi(tmp_path) as api:
        api.instances = [instance("new", "127.0.0.1")]
        monkeypatch.setenv("SSL_CERT_FILE", str(api.certificate))
        box = Box(
            "new", provider=Provider("lambda", str(api.key_file), url=api.url), port=sshd.port, user=sshd.user,
            key=str(sshd.user_key), transport="openssh", root=str(root), env={**variables, **OFFLINE},
            tmux_socket=f"grpo-test-{secrets.token_hex(4)}",
        )  # fmt: skip
        shell = Shell(tmp_path, box, capsys)
        try:
            assert os.listdir(sshd.home) == []
            code, out, errors = shell(*words)
            if code and "the network was disabled" in errors:  # the cache of this machine is not complete
                (tmp_path / "new.yaml").unlink()
                shell = Shell(tmp_path, replace(box, env=variables), capsys)
                code, out, errors = shell(*words)
            assert code == 0, out + errors
            assert "new: first trains: step" in out
            commit = _output("git", "rev-parse", "HEAD")
            assert json.loads((run / "launch.json").read_text())["code"] == {"commit": commit, "patch": ""}
            status = json.loads((run / "status.json").read_text())
            assert status["directory"] == str(sshd.home / ".grpo" / "worktrees" / commit)
            engine = sshd.home / ".grpo" / "code" / ".venv" / "bin" / "grpo-train"
            assert "first" in _output(str(engine), "show", "first", "--root", str(root))
            # Again: nothing is sent, installed or launched a second time.
            code, out, errors = shell(*words)
            assert (code, "nothing has changed since it was set up" in errors, "sent" in errors) == (0, True, False)
            assert len(list((root / "training_runs").glob("first*"))) == 1
            assert shell.json("kill", "first", "--yes")["left"] == []
        finally:
            subprocess.run(["tmux", "-L", box.tmux_socket, "kill-server"], capture_output=True)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
