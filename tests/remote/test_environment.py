"""The environment of a box: ``env`` of boxes.yaml, ``.env``, and the setup of the engine."""

from __future__ import annotations

import dataclasses
import shutil
import stat
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir.errors import UserError
from grpo_tui.shell.up import read_env
from remote.agent.box import expand
from remote.boxes import Box
from remote.protocol import RemoteError
from tests.remote.test_shell import Shell
from tests.support.agent import connected, eventually
from tests.support.canaries import ProcessWatch, canary, write_private
from tests.support.engine import REPOSITORY
from tests.support.sshd import Sshd
from tests.test_setup import UV

ENGINE = """#!/bin/sh
[ "$1" = --version ] && { echo "grpo-train 9.0.0 (format 1)"; exit; }
echo "home=$HF_HOME root=$LOCALFS_ROOT first=${PATH%%:*}" > "$LOCALFS_ROOT/said.new"
mv "$LOCALFS_ROOT/said.new" "$LOCALFS_ROOT/said"
"""


def test_variables_are_expanded_as_by_a_shell() -> None:
    given = {"A": "~/x:~/y", "B": "$A/z", "C": "${NO}c$$1", "PATH": "/cuda:$PATH", "D": "a~:$PATH"}
    home = str(Path("~").expanduser())
    assert expand(given, {"PATH": "/bin"}) == {
        "A": f"{home}/x:{home}/y", "B": f"{home}/x:{home}/y/z", "C": "c$1", "PATH": "/cuda:/bin", "D": "a~:/cuda:/bin",
    }  # fmt: skip


def test_variables_of_a_box_reach_its_engine_and_jobs(box: Box, root: Path, tmp_path: Path) -> None:
    engine = tmp_path / "bin" / "grpo-train"
    engine.parent.mkdir()
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    box = dataclasses.replace(box, engine=[], env={"PATH": f"{engine.parent}:$PATH", "HF_HOME": "~/my hf"})
    with connected(box, process=True) as (client, _):
        started = client.request("evaluate", 60, ckpt_path="/models/x").result(90)
        assert started["argv"][0] == str(engine), "the agent looks for it in the same PATH"
        eventually((root / "said").exists)
        wanted = f"home={Path('~').expanduser()}/my hf root={root} first={engine.parent}\n"
        assert (root / "said").read_text() == wanted


# ------------------------------------------------------------------------------------------------------------- .env


def test_a_secret_is_only_in_its_file(
    ssh_box: Box,
    sshd: Sshd,
    root: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not in a command line, tmux, a record of the request, a message, or the environment of anything that runs."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "own"))
    monkeypatch.setattr("grpo_tui.shell.connection.accept_host_key", lambda question: True)
    shell = Shell(tmp_path, dataclasses.replace(ssh_box, transport="openssh"), capsys)
    (root / "training_runs").mkdir()
    planted = {"token": canary("hf_"), "password": canary()}
    text = f"# mine\nHF_TOKEN={planted['token']}\nexport MY_PASSWORD='{planted['password']}'\nHF_HOME=~/hf\n"
    given = write_private(tmp_path / "laptop" / "my.env", text)
    placed = sshd.home / ".grpo" / ".env"
    placed.unlink(missing_ok=True)
    with ProcessWatch(planted) as watch:
        assert shell("env", "put", str(given), "--readonly")[0] == 1
        assert shell.json("env", "put", str(given), "--dry-run")["variables"] == ["HF_HOME", "HF_TOKEN", "MY_PASSWORD"]
        assert not placed.exists()
        code, out, errors = shell("env", "put", str(given))
        assert (code, out) == (0, f"h200: {placed} written: HF_HOME, HF_TOKEN, MY_PASSWORD\n")
        assert placed.read_text() == text
        assert [stat.S_IMODE(path.stat().st_mode) for path in (placed, placed.parent)] == [0o600, 0o700]
        assert shell.json("launch", str(shell.config), "--run-name", "far")["started"] is True
        given.write_text(text.replace("mine", "again"))
        again = shell.json("env", "put", str(given))
        assert (again["replaced"], placed.read_text()) == (True, given.read_text())
        assert shell.json("kill", "far", "--yes")["left"] == []
    assert "serve" in "".join(watch.commands)
    assert (watch.shown, watch.environments) == (set(), set())
    files = [file for folder in (tmp_path, sshd.home) for file in folder.rglob("*") if file.is_file()]
    assert any(".requests-" in str(file) for file in files), "the request has a record"
    holding = {file for file in files if any(value.encode() in file.read_bytes() for value in planted.values())}
    assert holding == {given, placed}
    assert not [value for value in planted.values() if value in out + errors + str(again)]
    placed.unlink()


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("A=1\n\nqqqq\n", 3, "expected NAME=value"),
        ("A=1\nB='qqqq\n", 2, "expected NAME=value"),
        ("A=1\n'b c'=qqqq\n", 2, "not a variable's name"),
        ("A=qqqq\n# x\nexport A=qqqq\n", 3, "duplicate variable 'A' (first defined on line 1)"),
    ],
)
def test_a_bad_file_is_named_with_its_line(tmp_path: Path, text: str, line: int, reason: str) -> None:
    file = write_private(tmp_path / ".env", text)
    with pytest.raises(UserError) as caught:
        read_env(file)
    assert str(caught.value).startswith(f"{file}:{line}: ")
    assert (reason in str(caught.value), "qqqq" in str(caught.value)) == (True, False)


def test_a_file_that_is_missing_or_too_large(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read_env(tmp_path / ".env")
    with pytest.raises(UserError, match="larger than"):
        read_env(write_private(tmp_path / "large", "A=" + "x" * 20_000))


def test_the_agent_shows_no_text_that_it_refuses(box: Box, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with connected(box) as (client, _):
        for text in (["qqqq"], "A=qqqq\0", "A=" + "q" * 20_000):
            with pytest.raises(RemoteError) as caught:
                client.request("place_env", 60, text=text).result(90)
            assert (caught.value.code, "qqqq" in str(caught.value)) == ("bad_request", False)
    assert not (tmp_path / ".grpo" / ".env").exists()


# ------------------------------------------------------------------------------------------------------------ setup


@pytest.fixture
def bare(box: Box, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    """A box with a checkout in which nothing is installed; its ``uv`` records what it is asked to install."""
    monkeypatch.setenv("HOME", str(tmp_path))
    repo, uv = tmp_path / "repo", tmp_path / "bin" / "uv"
    (repo / "scripts").mkdir(parents=True)
    (repo / "config").mkdir()
    shutil.copy(REPOSITORY / "scripts" / "setup.sh", repo / "scripts")
    uv.parent.mkdir()
    uv.write_text(UV.format(log=tmp_path / "uv.log", torch_status=0))
    uv.chmod(0o755)
    bare = dataclasses.replace(box, engine=[], repo=str(repo), env={"PATH": f"{uv.parent}:$PATH"})
    return Shell(tmp_path, bare, capsys)


def test_a_box_is_set_up_in_a_session(bare: Shell) -> None:
    log = bare.folder / "uv.log"
    planned = bare.json("env", "setup", "--dry-run")
    assert (planned["argv"][1:], planned["started"]) == ([f"{bare.folder}/repo/scripts/setup.sh", "--box"], False)
    assert not log.exists()
    code, _, errors = bare("env", "setup")
    assert code == 0, errors
    assert "setup: ready" in errors
    assert "grpo-tui attach setup --box local" in errors
    assert [row["name"] for row in bare.json("sessions")] == ["setup"]
    first = log.read_text()
    assert ".[train]" in first
    assert bare.json("env", "setup")["exit_status"] == 0
    assert log.read_text() == first, "the second time, nothing is installed"


def test_a_setup_that_fails_continues(bare: Shell) -> None:
    uv = bare.folder / "bin" / "uv"
    working = uv.read_text()
    uv.write_text("#!/bin/sh\necho no route to the index >&2; exit 3\n")
    refused = bare.json("env", "setup", code=1)["error"]
    assert refused["code"] == "setup_failed"
    assert "exit status 3" in refused["message"]
    assert "no route to the index" in refused["message"]
    uv.write_text(working)
    assert bare.json("env", "setup")["exit_status"] == 0


def test_a_setup_whose_session_ends_continues(bare: Shell, tmux_socket: str) -> None:
    uv = bare.folder / "bin" / "uv"
    working = uv.read_text()
    uv.write_text(f"#!/bin/sh\ntouch {bare.folder}/begun; sleep 600\n")

    def end() -> None:
        eventually((bare.folder / "begun").exists)
        subprocess.run(["tmux", "-L", tmux_socket, "kill-server"], check=True)

    ending = threading.Thread(target=end)
    ending.start()
    refused = bare.json("env", "setup", code=1)["error"]
    ending.join()
    assert (refused["code"], "ended before" in refused["message"]) == ("setup_failed", True)
    uv.write_text(working)
    assert bare.json("env", "setup")["exit_status"] == 0


@pytest.mark.parametrize(
    ("settings", "code", "message"),
    [
        ({"activate": "conda activate rl"}, "bad_request", "'activate' in boxes.yaml names the environment"),
        ({"engine": ["/x"]}, "bad_request", "'engine' in boxes.yaml names the environment"),
        ({}, "no_repo", "no checkout is configured"),
        ({"repo": "/no/such/folder"}, "no_repo", "/no/such/folder does not exist"),
        ({"repo": "/"}, "no_repo", "/ is not a checkout"),
    ],
)
def test_what_cannot_be_set_up(box: Box, settings: dict[str, Any], code: str, message: str) -> None:
    with connected(dataclasses.replace(box, **{"engine": [], **settings})) as (client, _):
        with pytest.raises(RemoteError) as caught:
            client.request("set_up", 60).result(90)
        assert (caught.value.code, message in str(caught.value)) == (code, True), caught.value
        assert client.request("list_sessions", 60).result(90)["sessions"] == []
