"""``grpo-tui up``: from a new user behind an sshd to the first step, with the commit of this checkout.

The box is an instance that is found by its name, as docs/boxes.md walks through it.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from remote.boxes import Box, Provider
from tests.remote.test_shell import Shell
from tests.support.accounts import NewUser, new_user, new_users_work
from tests.support.engine import REPOSITORY
from tests.support.lambda_api import LambdaApi, instance
from tests.support.sshd import Sshd
from tests.support.stores import on_a_disk

QUICK = ["run.total_steps=500", "rollout.buffer_size=8", "rollout.num_generations=4", "rollout.max_completion_length=8"]


@pytest.fixture
def tmp_path(tmp_path: Path) -> Iterator[Path]:
    """On a disk: an environment with torch takes gigabytes where uv cannot link to its cache."""
    with on_a_disk(tmp_path) as folder:
        yield folder


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The checkout on the laptop."""
    folder = tmp_path / "grpo-tui"
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)
    monkeypatch.chdir(folder)
    return folder


OFFLINE = {"UV_OFFLINE": "1"}
"""Installs from uv's cache alone."""


class Account(NamedTuple):
    """Who the sshd lets in, and what that user needs of this machine's packages."""

    user: NewUser | None
    mounts: list[str]
    disk: Path
    variables: dict[str, str]
    uv: dict[str, str]
    """Adds this machine's uv to PATH."""


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    """A new user without uv; where there can be none, an empty home of the same user with uv on PATH."""
    uv = shutil.which("uv") or str(REPOSITORY / ".uv" / "bin" / "uv")
    cache = Path(subprocess.run([uv, "cache", "dir"], capture_output=True, text=True, check=True).stdout.strip())
    variables = {name: value for name, value in os.environ.items() if name.startswith(("UV_", "PIP_", "SSL_CERT_"))}
    if not new_users_work(cache):
        on_path = {"PATH": f"{Path(uv).parent}:$PATH"}
        (tmp_path / "disk").mkdir()
        yield Account(None, [], tmp_path / "disk", {**variables, **on_path, "UV_CACHE_DIR": str(cache)}, on_path)
        return
    with new_user(tmp_path / "home") as user:
        mounts = [user.share_cache(cache)]
        variables = {name: value for name, value in variables.items() if name != "UV_CACHE_DIR"}
        tools, disk = user.home / "tools", user.home / "disk"
        for folder in (tools, disk):
            folder.mkdir()
        shutil.copy(uv, tools)
        yield Account(user, mounts, disk, {**variables, "UV_LINK_MODE": "symlink"}, {"PATH": f"{tools}:$PATH"})


def test_from_a_bare_machine_to_the_first_step(
    clone: Path,
    account: Account,
    tiny_model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The disk of the runs is the one that outlives the box: it has the tiny model."""
    root = account.disk / "localfs"
    shutil.copytree(tiny_model, root / "models" / "tiny")
    bring_up(account, root, tmp_path, capsys, monkeypatch)


def bring_up(
    account: Account,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    then: Callable[[Shell], object] = lambda shell: None,
) -> None:
    """``grpo-tui up`` twice, from a clone as the working directory; ``then`` uses the box while the run trains."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("grpo_tui.shell.connection.accept_host_key", lambda question: True)
    words = ["up", "--run-name", "first", "--key", "k", *(word for change in QUICK for word in ("--set", change))]
    run = root / "training_runs" / "first"
    if account.user:
        account.user.give(account.disk)
    with Sshd(tmp_path / "box", user=account.user, mounts=account.mounts) as sshd, LambdaApi(tmp_path) as api:
        api.instances = [instance("new", "127.0.0.1")]
        monkeypatch.setenv("SSL_CERT_FILE", str(api.certificate))
        box = Box(
            "new", provider=Provider("lambda", str(api.key_file), url=api.url), port=sshd.port, user=sshd.user,
            key=str(sshd.user_key), transport="openssh", root=str(root), env={**account.variables, **OFFLINE},
            tmux_socket=f"grpo-test-{secrets.token_hex(4)}",
        )  # fmt: skip
        try:
            assert not (sshd.home / ".grpo").exists()
            shell = Shell(tmp_path, box, capsys)
            code, out, errors = shell(*words)
            if code and "No matching distribution found for uv" in errors:  # no package index is reachable
                box = replace(box, env={**box.env, **account.uv})
                shell = _again(shell, box, capsys)
                code, out, errors = shell(*words)
            if code and "the network was disabled" in errors:  # the cache of this machine is not complete
                box = replace(box, env={name: value for name, value in box.env.items() if name not in OFFLINE})
                shell = _again(shell, box, capsys)
                code, out, errors = shell(*words)
            assert code == 0, out + errors
            assert "new: first trains: step" in out
            commit = _output("git", "rev-parse", "HEAD")
            assert json.loads((run / "launch.json").read_text())["code"] == {"commit": commit, "patch": ""}
            status = json.loads((run / "status.json").read_text())
            assert status["directory"] == str(sshd.home / ".grpo" / "worktrees" / commit)
            engine = sshd.home / ".grpo" / "code" / ".venv" / "bin" / "grpo-train"
            assert "first" in _on_box(sshd, str(engine), "show", "first", "--root", str(root))
            # Again: nothing is sent, installed or launched a second time.
            code, out, errors = shell(*words)
            assert (code, "nothing has changed since it was set up" in errors, " sent)" in errors) == (0, True, False)
            assert len(list((root / "training_runs").glob("first*"))) == 1
            then(shell)
            assert shell.json("kill", "first", "--yes")["left"] == []
        finally:
            _on_box(sshd, "tmux", "-L", box.tmux_socket, "kill-server", check=False)


def _again(shell: Shell, box: Box, capsys: pytest.CaptureFixture[str]) -> Shell:
    """The shell with another boxes.yaml."""
    shell.boxes.unlink()
    return Shell(shell.folder, box, capsys)


def _on_box(sshd: Sshd, *command: str, check: bool = True) -> str:
    """What a command prints in a login shell of the box."""
    ssh = ["ssh", "-F", "none", "-i", str(sshd.user_key), "-p", str(sshd.port), "-o", "StrictHostKeyChecking=no"]
    ssh += ["-o", f"UserKnownHostsFile={sshd.folder}/known_hosts", f"{sshd.user}@127.0.0.1", "--", *command]
    return subprocess.run(ssh, capture_output=True, text=True, check=check).stdout.strip()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
