"""A tmux that the user configured, started and works in: our sessions do not depend on it, and theirs are theirs."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir import open_run
from grpo_train.run_dir.processes import start_ticks
from grpo_train.run_dir.sessions import STARTED_OPTION, lost_server
from remote.agent.sessions import socket_path
from remote.boxes import Box
from remote.protocol import RemoteError
from tests.support.agent import connected, eventually

Ask = Callable[..., dict[str, Any]]
Tmux = Callable[..., str]
ENGINE = """#!/bin/sh
[ "$1" = --version ] && { echo "grpo-train 9.0.0 (format 1)"; exit; }
env > "$LOCALFS_ROOT/said.new"
mv "$LOCALFS_ROOT/said.new" "$LOCALFS_ROOT/said"
"""


@pytest.fixture
def tmux(tmux_socket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tmux:
    """The user's own commands, in a home directory of their own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TMUX", raising=False)

    def call(*arguments: str, **environment: str) -> str:
        command = ["tmux", "-L", tmux_socket, *arguments]
        return subprocess.check_output(command, text=True, env={**os.environ, **environment}).strip()

    return call


@pytest.fixture
def ask(box: Box, tmux: Tmux) -> Iterator[Ask]:
    with connected(box) as (client, _):
        yield lambda op, **params: client.request(op, 40, **params).result(45)


def session(ask: Ask, name: str) -> dict[str, Any]:
    return next(row for row in ask("list_sessions")["sessions"] if row["name"] == name)


@pytest.mark.parametrize(
    "lines",
    [
        "set -g destroy-unattached on\nset -g default-command false\nset -g base-index 1\nset -g pane-base-index 1",
        "set -s exit-unattached on\nset -g remain-on-exit off\nnot a command",
        "set-hook -g after-new-session 'split-window -hb'\nset-hook -g session-created 'new-window'",
        "set -g history-limit 1\nset -g update-environment 'PATH'\nset -g default-terminal xterm-nobody-knows",
    ],
)
def test_a_run_does_not_depend_on_the_users_options(ask: Ask, root: Path, tmp_path: Path, lines: str) -> None:
    (tmp_path / ".tmux.conf").write_text(lines)
    assert ask("launch", config_text="obedient", run_name="r1")["started"]
    eventually(lambda: open_run(root, "r1").observed_state().state == "running")
    assert "fake engine: supervise r1" in ask("capture_pane", session="r1")["text"]
    assert ask("kill", run="r1")["left"] == []
    eventually(lambda: session(ask, "r1")["dead"])
    assert ask("open_shell") == {"session": "shell"}
    ask("launch", config_text="short", run_name="r2")
    eventually(lambda: session(ask, "r2")["exit_status"] == 7)
    assert "fake engine: supervise r2" in ask("capture_pane", session="r2")["text"]


def test_a_session_that_is_gone_at_once_is_no_launch(ask: Ask, root: Path, tmp_path: Path) -> None:
    (tmp_path / ".tmux.conf").write_text("set-hook -g after-new-session kill-session")
    with pytest.raises(RemoteError) as caught:
        ask("launch", config_text="obedient", run_name="r1")
    assert caught.value.code == "tmux"
    assert open_run(root, "r1").observed_state().state == "crashed"


def test_a_server_without_sessions(ask: Ask, tmux: Tmux, root: Path) -> None:
    tmux("start-server", ";", "set-option", "-s", "exit-empty", "off")
    assert ask("list_sessions")["sessions"] == []
    assert next(each for each in ask("doctor")["checks"] if each["name"] == "tmux")["ok"]
    ask("launch", config_text="obedient", run_name="r1")
    eventually(lambda: open_run(root, "r1").observed_state().state == "running")
    ask("kill", run="r1")


@pytest.mark.parametrize("server_runs", [True, False])
def test_one_environment_for_every_session(
    box: Box, tmux: Tmux, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server_runs: bool
) -> None:
    """Whoever started the server; values that may be secret are in no command line."""
    engine = tmp_path / "engine"
    engine.write_text(ENGINE)
    engine.chmod(0o755)
    if server_runs:
        tmux("new-session", "-d", RANK="3", WORLD_SIZE="8", CUDA_VISIBLE_DEVICES="", HF_HOME="/theirs", LANG="tlh_QO")
    proxy = "http://me:it's a $(secret)\n@proxy:3128"
    for name, value in {"https_proxy": proxy, "HF_HOME": "/mine", "PYTHONDONTWRITEBYTECODE": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with connected(dataclasses.replace(box, engine=[str(engine)], env={"A": "b"})) as (client, _):
        for _ in range(2):  # the second one has a server in any case
            client.request("evaluate", 40, ckpt_path="/models/x").result(45)
            eventually((root / "said").exists)
            said = (root / "said").read_text()
            (root / "said").unlink()
            assert proxy in said
            names = {line.partition("=")[0] for line in said.splitlines()}
            assert {"A", "HOME", "PATH", "TERM", "TMUX", "TMUX_PANE", "PYTHONDONTWRITEBYTECODE"} <= names
            assert not names & {"RANK", "WORLD_SIZE", "CUDA_VISIBLE_DEVICES", "LANG"}
            assert {"HF_HOME=/mine", f"LOCALFS_ROOT={root}", "LC_ALL=C.UTF-8"} <= set(said.splitlines())
            eventually(lambda: tmux("display-message", "-p", "-t", "=eval_x:", "#{pane_dead}") == "1")
    server = Path(f"/proc/{tmux('display-message', '-p', '#{pid}')}/cmdline").read_text()
    assert "secret" not in server + tmux("show-environment", "-t", "=eval_x")


@pytest.fixture
def evaluation(ask: Ask, tmux: Tmux) -> tuple[str, str]:
    """Pane and process id of an evaluation."""
    ask("evaluate", ckpt_path="/models/x")
    eventually(lambda: "fake engine: eval" in ask("capture_pane", session="eval_x")["text"])
    pane, pid = tmux("display-message", "-p", "-t", "=eval_x:", "#{pane_id} #{pane_pid}").split()
    return pane, pid


@pytest.mark.parametrize("is_older", [False, True], ids=["with a pane id", "of an older version"])
def test_panes_of_the_user_are_theirs(ask: Ask, tmux: Tmux, evaluation: tuple[str, str], is_older: bool) -> None:
    if is_older:
        tmux("set-option", "-u", "-t", "=eval_x:", STARTED_OPTION)
    theirs = tmux("split-window", "-hb", "-P", "-F", "#{pane_id}", "-t", "=eval_x:", "cat")
    tmux("move-window", "-s", "=eval_x:", "-t", "=eval_x:7")
    tmux("new-window", "-b", "-t", "=eval_x:7", "cat")
    assert "fake engine: eval" in ask("capture_pane", session="eval_x")["text"]
    assert ask("kill", session="eval_x") == {"session": "eval_x", "left": [], "forced": False}
    assert start_ticks(int(evaluation[1])) is None
    eventually(lambda: session(ask, "eval_x")["dead"])
    assert not ask("evaluate", ckpt_path="/models/x", dry_run=True)["started"]
    for before in ("eval_x_before", "eval_x_before1"):
        assert ask("evaluate", ckpt_path="/models/x")["started"]
        assert "@grpo" not in tmux("show-options", "-t", f"={before}:"), "it is the user's"
        assert f"{theirs}0" in tmux("list-panes", "-s", "-t", "=eval_x_before:", "-F", "#{pane_id}#{pane_dead}")
        tmux("split-window", "-t", "=eval_x:", "cat")
        ask("kill", session="eval_x")


def test_a_repeated_kill_ends_only_the_process_that_it_found(ask: Ask, root: Path, evaluation: tuple[str, str]) -> None:
    """The agent was killed before it wrote down its answer; meanwhile another evaluation has the session."""
    answer = ask("kill", session="eval_x", idempotency_key="k")
    (record,) = (root / "training_runs").glob(".requests-*/kill-*.jsonl")
    record.write_text("".join(line for line in record.read_text().splitlines(True) if '"reply"' not in line))
    eventually(lambda: session(ask, "eval_x")["dead"])
    ask("evaluate", ckpt_path="/models/x")
    eventually(lambda: not session(ask, "eval_x")["dead"])
    assert (
        ask("kill", session="eval_x", idempotency_key="k")
        == answer
        == {"session": "eval_x", "left": [], "forced": False}
    )
    assert not session(ask, "eval_x")["dead"]


def test_what_runs_in_place_of_ours_is_not_ours(ask: Ask, tmux: Tmux, evaluation: tuple[str, str]) -> None:
    tmux("respawn-pane", "-k", "-t", evaluation[0], "cat")
    pid = tmux("display-message", "-p", "-t", evaluation[0], "#{pane_pid}")
    tmux("split-window", "-t", "=eval_x:", "cat")
    for closed in (False, True):
        if closed:
            tmux("kill-pane", "-t", evaluation[0])
        assert session(ask, "eval_x")["dead"]
        for op, params, code in (
            ("kill", {"session": "eval_x"}, "not_running"),
            ("capture_pane", {"session": "eval_x"}, "no_session"),
            ("send_line", {"session": "eval_x", "line": "x"}, "no_session"),
        ):
            with pytest.raises(RemoteError) as caught:
                ask(op, **params)
            assert caught.value.code == code
        eventually(lambda closed=closed: (start_ticks(int(pid)) is None) == closed)  # type: ignore[misc]


def test_a_run_whose_pane_was_closed_has_an_end(ask: Ask, tmux: Tmux, root: Path) -> None:
    ask("launch", config_text="obedient", run_name="r1")
    eventually(lambda: open_run(root, "r1").observed_state().state == "running")
    tmux("split-window", "-t", "=r1:", "cat")
    tmux("kill-pane", "-t", "=r1:.{top}")
    eventually(lambda: open_run(root, "r1").observed_state().state == "lost")
    with pytest.raises(RemoteError) as caught:
        ask("kill", run="r1")
    assert caught.value.code == "not_running"


def test_a_dead_session_of_the_user_is_not_replaced(ask: Ask, tmux: Tmux) -> None:
    tmux("new-session", "-d", "-s", "eval_x", "true", ";", "set-option", "-w", "-t", "=eval_x:", "remain-on-exit", "on")
    eventually(lambda: session(ask, "eval_x")["dead"])
    with pytest.raises(RemoteError, match="grpo-tui did not start the tmux session") as caught:
        ask("evaluate", ckpt_path="/models/x")
    assert "tmux rename-session" in caught.value.hint
    assert session(ask, "eval_x")


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for sockets."""
    with tempfile.TemporaryDirectory(prefix="tmux-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.mark.parametrize("removed", ["the socket", "the directory"])
def test_a_server_whose_socket_was_removed_is_named_with_the_way_back(
    ask: Ask, tmux: Tmux, tmux_socket: str, root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, removed: str
) -> None:
    monkeypatch.setenv("TMUX_TMPDIR", str(folder))
    ask("launch", config_text="obedient", run_name="r1")
    eventually(lambda: open_run(root, "r1").observed_state().state == "running")
    pid = tmux("display-message", "-p", "#{pid}")
    try:
        shutil.rmtree(folder) if removed == "the directory" else socket_path(tmux_socket).unlink()
        if removed == "the directory":
            folder.mkdir()
        said: set[str] = set()
        for op, params in (
            ("list_sessions", {}),
            ("kill", {"session": "eval_x"}),
            ("capture_pane", {"session": "r1"}),
            ("launch", {"config_text": "obedient", "run_name": "r2"}),
            ("evaluate", {"ckpt_path": "/models/x"}),
            ("open_shell", {}),
        ):
            with pytest.raises(RemoteError) as caught:
                ask(op, **params)
            assert caught.value.code == "tmux"
            assert f"(pid {pid}) runs, but its socket {socket_path(tmux_socket)} was removed" in caught.value.message
            said.add(caught.value.hint.removeprefix("on the box: "))
        (command,) = said
        assert command.endswith(f"kill -USR1 {pid}")
        (check,) = (check for check in ask("doctor")["checks"] if check["name"] == "tmux")
        assert (check["level"], command in check["hint"]) == ("error", True)
        subprocess.run(command, shell=True, check=True)
        eventually(socket_path(tmux_socket).exists)
        assert session(ask, "r1")["run"] == "r1"
        ask("kill", run="r1")
    finally:
        os.kill(int(pid), signal.SIGTERM)


def test_a_server_that_another_one_hides(ask: Ask, tmux: Tmux, tmux_socket: str, root: Path) -> None:
    ask("evaluate", ckpt_path="/models/x")
    pid = tmux("display-message", "-p", "#{pid}")
    socket_path(tmux_socket).unlink()
    tmux("new-session", "-d", "-s", "mine", "cat")
    other = tmux("display-message", "-p", "#{pid}")
    try:
        assert [row["name"] for row in ask("list_sessions")["sessions"]] == ["mine"]
        for op in ("kill", "capture_pane"):
            with pytest.raises(RemoteError, match=rf"\(pid {pid}\) runs, but its socket"):
                ask(op, session="eval_x")
        assert f"kill -USR1 {pid}" in next(c["hint"] for c in ask("doctor")["checks"] if c["name"] == "tmux")
        os.kill(int(pid), signal.SIGUSR1)
        eventually(lambda: [row["name"] for row in ask("list_sessions")["sessions"]] == ["eval_x"])
        ask("kill", session="eval_x")
    finally:
        os.kill(int(other), signal.SIGKILL)


def test_only_a_tmux_is_taken_for_a_server(tmp_path: Path) -> None:
    file = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(file))
        listener.listen()
        assert lost_server(file) is None
        file.unlink()
        assert lost_server(file) is None
