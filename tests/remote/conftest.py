"""A local box with a fake engine and its own tmux socket, and one real sshd per session."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remote.boxes import Box
from remote.transports.bootstrap import build
from tests.support.known_hosts import trust
from tests.support.proxy import ChaosProxy
from tests.support.sshd import Sshd, store_agent

FAKE_ENGINE = Path(__file__).resolve().parents[1] / "support" / "fake_engine.py"


@pytest.fixture(scope="module", autouse=True)
def _own_directories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the bundle's cache and the user's configuration in temporary directories, the same in each such module."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME"):
            (folder := tmp_path_factory.getbasetemp() / name).mkdir(exist_ok=True)
            patch.setenv(name, str(folder))
        patch.delenv("SSH_AUTH_SOCK", raising=False)
        patch.setenv("LC_ALL", "C.UTF-8")  # as an agent sets it: tmux
        store_agent(build().path().parent, sys.executable)
        yield


@pytest.fixture
def tmux_socket() -> Iterator[str]:
    name = f"grpo-test-{secrets.token_hex(4)}"
    yield name
    subprocess.run(["tmux", "-L", name, "kill-server"], capture_output=True, timeout=10)
    (Path(os.environ.get("TMUX_TMPDIR", "/tmp")) / f"tmux-{os.getuid()}" / name).unlink(missing_ok=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "localfs"
    folder.mkdir()
    return folder


@pytest.fixture
def box(root: Path, tmux_socket: str) -> Box:
    return Box("local", kind="local", root=str(root), engine=[str(FAKE_ENGINE)], tmux_socket=tmux_socket)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    with Sshd(tmp_path_factory.mktemp("box"), knows_agent=True) as server:
        yield server


@pytest.fixture
def hosts(tmp_path: Path, sshd: Sshd) -> Path:
    """A known_hosts file with the box's key."""
    file = tmp_path / "known_hosts"
    trust(file, sshd, "h200")
    return file


@pytest.fixture
def own_sshd(tmp_path: Path) -> Iterator[Sshd]:
    """A server that the test may modify."""
    with Sshd(tmp_path, knows_agent=True) as server:
        yield server


@pytest.fixture
def proxy(sshd: Sshd) -> Iterator[ChaosProxy]:
    with ChaosProxy(sshd.port) as between:
        yield between


@pytest.fixture
def ssh_box(sshd: Sshd, proxy: ChaosProxy, root: Path, tmux_socket: str) -> Box:
    return Box(
        "h200",
        host="127.0.0.1",
        port=proxy.port,
        user=sshd.user,
        key=str(sshd.user_key),
        transport="paramiko",
        root=str(root),
        engine=[str(FAKE_ENGINE)],
        tmux_socket=tmux_socket,
    )
