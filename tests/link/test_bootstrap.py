"""Which Python the agent runs on, and where it is stored, over a real sshd."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, Link
from remote.transports import bootstrap
from remote.transports.bootstrap import build
from tests.remote.conftest import FAKE_ENGINE
from tests.support.agent import connected, eventually
from tests.support.mounts import mounted
from tests.support.proxy import ChaosProxy
from tests.support.ssh_lab import Lab, Row, lab

PYTHONS = [
    Path(found)
    for version in ("3.9", "3.8", "3.7", "3.6")
    for found in itertools.chain(
        filter(None, [shutil.which(f"python{version}", path="/usr/bin:/usr/local/bin")]),
        map(str, (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python{version}")),
    )
]
old_python = pytest.mark.skipif(not PYTHONS, reason="no Python older than 3.10 on this machine")


@pytest.fixture
def place() -> Iterator[Lab]:
    with lab(knows_agent=False) as place:
        yield place


@old_python
def test_an_old_python_is_named_with_what_helps(place: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    old = PYTHONS[0]
    version = old.name.removeprefix("python")
    monkeypatch.setattr(bootstrap, "_PYTHONS", (str(old), "/no/such/python"))
    row = Row(place.config(place.server()))
    monkeypatch.setattr(bootstrap, "_NEW_ENOUGH", {})  # another distribution
    message = place.link(row, "openssh").message
    assert f"the newest is {version}" in message
    assert "uv python install 3.12" in message
    assert "apt-get" not in message


@old_python
def test_a_named_python_that_is_too_old(place: Lab) -> None:
    old = PYTHONS[0]
    message = place.link(Row(place.config(place.server()), {"python": str(old)}), "openssh").message
    assert f"'{old}'" in message
    assert f"is Python {old.name.removeprefix('python')}" in message
    assert (
        "'/no/python' ('python' of"
        in place.link(Row(place.config(place.server()), {"python": "/no/python"}), "openssh").message
    )


def test_a_named_python_and_directory(place: Lab) -> None:
    server = place.server()
    (server.home / "my python").symlink_to("/usr/bin/python3")
    box = place.box(Row("", {"python": "~/my python", "agent_dir": "~/some where"}), "openssh")
    config = place.folder / "config"
    config.write_text(place.config(server))
    with connected(box, ssh_config=str(config), host_keys_file=place.folder / "hosts") as (_, recorder):
        recorder.wait_link(Link.CONNECTED, 30)
        recorder.wait_for(BoxGreeted)
    assert len(list((server.home / "some where").glob("*.pyz"))) == 1
    assert not (server.home / ".grpo").exists()


def test_the_runtime_directory_comes_after_the_home(place: Lab) -> None:
    runtime = place.folder / "runtime"
    runtime.mkdir()
    server = place.server(environment={"HOME": "/proc", "XDG_RUNTIME_DIR": str(runtime)})
    assert place.link(Row(place.config(server)), "openssh").connected
    assert len(list((runtime / "grpo-agent").glob("*.pyz"))) == 1


# --------------------------------------------------------------------------------------------------- from memory


def agents_in_memory(place: Path) -> list[int]:
    """
    Pids of agents without a file whose arguments or environment name a directory (others are of other tests).

    A child that the agent has just forked looks like the agent until it executes its program.
    """
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (entry / "cmdline").read_bytes()
            in_memory = {build().sha256.encode(), b"-c"} <= set(command.split(b"\0"))
            if in_memory and os.fsencode(place) in command + (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def agent_check(client: BoxClient) -> dict[str, Any]:
    """What the doctor says about the agent."""
    checks = client.request("doctor", 40).result(45)["checks"]
    (found,) = [check for check in checks if check["name"] == "agent"]
    return dict(found)


@pytest.mark.parametrize(
    ("kind", "reason", "transport"),
    [("read-only", "Read-only file system", "openssh"), ("full", "No space left", "paramiko")],
)
def test_a_home_without_room(place: Lab, tmux_socket: str, kind: str, reason: str, transport: str) -> None:
    server = place.server()
    with mounted(server.home, kind), ChaosProxy(server.port) as proxy:
        before = set(server.home.rglob("*.*"))
        place.know(f"[127.0.0.1]:{proxy.port}", server)
        config = place.folder / "config"
        config.write_text(place.config(server, f"Port {proxy.port}"))
        hosts = place.folder / "hosts"
        hosts.write_text(f"gpu-box {place.public(server.host_key)}\n")
        engine = {"engine": [str(FAKE_ENGINE)], "tmux_socket": tmux_socket}
        box = place.box(Row("", engine), transport)
        with connected(box, ssh_config=str(config), host_keys_file=hosts, reconnects=True) as (client, recorder):
            assert recorder.wait_for(BoxGreeted, 30).agent == build().sha256
            assert agents_in_memory(server.home)
            check = agent_check(client)
            assert f"runs from memory ({server.home}/.grpo/agent/" in check["detail"]
            assert reason in check["detail"]
            assert "agent_dir" in check["hint"]
            client.request("launch", 40, config_text="obedient", run_name="run_1").result(45)
            eventually(lambda: _state(client) == "running", 20)
            mark = recorder.mark()
            proxy.reset()
            recorder.wait_reconnected(mark)
            client.request("stop", 40, run="run_1").result(45)
            eventually(lambda: _state(client) == "stopped", 20)
        eventually(lambda: not agents_in_memory(server.home), what="the agents exit")
        assert set(server.home.rglob("*.*")) - before <= {server.home / ".grpo"}
        assert not [file for file in server.home.rglob("*.pyz*") if file.is_file()]


def _state(client: BoxClient) -> str:
    (run,) = client.request("list_runs").result(60)["runs"]
    return str(run["state"])


def test_a_home_without_programs(place: Lab) -> None:
    """noexec: Python reads the agent, nothing executes it."""
    server = place.server()
    config = place.folder / "config"
    config.write_text(place.config(server))
    with mounted(server.home, "noexec"):
        box = place.box(Row(""), "openssh")
        with connected(box, ssh_config=str(config), host_keys_file=place.folder / "hosts") as (client, _):
            check = agent_check(client)
            facts = {"name": "agent", "ok": True, "level": "ok", "hint": "", "fix": ""}
            assert check == {**facts, "detail": f"stored at {_stored(server.home)}"}


def _stored(home: Path) -> Path:
    (file,) = home.glob(".grpo/agent/*.pyz")
    return file


@pytest.mark.parametrize("kind", ["read-only", "full"])
def test_this_machine_without_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    box = Box("local", kind="local", root=str(tmp_path))
    with mounted(cache, kind), connected(box, process=True, reconnects=True) as (client, recorder):
        assert recorder.wait_for(BoxGreeted).agent == build().sha256
        assert f"runs from memory ({cache}" in agent_check(client)["detail"]
        mark = recorder.mark()
        pids = agents_in_memory(cache)
        assert pids
        for pid in pids:
            with suppress(ProcessLookupError):  # a child that has ended
                os.kill(pid, signal.SIGKILL)
        recorder.wait_reconnected(mark)
        assert client.request("list_runs").result(60) == {"runs": []}
    eventually(lambda: not agents_in_memory(cache), what="the agents exit")


def test_only_a_whole_agent_is_stored(tmp_path: Path) -> None:
    """It ends as a link does, with a reason, when its bytes are cut or damaged."""
    data, place = build().data, tmp_path / "agent" / build().name
    for sent in (data[:-1], b"x" + data[1:], data[:-1] + b"x"):
        argv = bootstrap.receiving_argv(sys.executable, "marker", [str(place)])
        done = subprocess.run(argv, input=sent, capture_output=True, timeout=120)
        assert done.stdout == b"\nmarker\n"
        assert done.stderr == b"the agent arrived incomplete\n"
    assert not place.parent.exists()
