"""Followed logs: long random histories, and agents and clients of other versions.

LINK_SEED repeats a run; LINK_HISTORIES and LINK_STORM set its length.
"""

from __future__ import annotations

import io
import os
import random
import secrets
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from remote.agent.follow import sha256
from remote.boxes import Box
from remote.events import LogRotated
from remote.transports.bootstrap import build
from remote.transports.local import LocalTransport
from remote.transports.transport import AskHostKey
from tests.link.test_logs import HEAD, kill_the_agent_of_a_restored_log
from tests.support.agent import RawAgent, connected, eventually
from tests.support.engine import REPOSITORY
from tests.support.logs import run_histories, run_storm

SEED = os.environ.get("LINK_SEED") or secrets.token_hex(4)
HISTORIES = int(os.environ.get("LINK_HISTORIES", "300"))
STORM = int(os.environ.get("LINK_STORM", "6000"))
"""Actions; some 50 a second."""
OLDER = {"0.1.0": "abe2103", "0.2.0": "1d93138"}
"""Commits of agents whose cursors have only the head; this repository has them (a shallow clone does not)."""


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RawAgent]:
    raw = RawAgent(tmp_path, process=True)
    yield raw
    raw.transport.close()


def test_random_histories(agent: RawAgent, tmp_path: Path) -> None:
    run_histories(agent, tmp_path, SEED, HISTORIES, steps=40)


def test_a_log_in_a_storm_of_rotations(agent: RawAgent, tmp_path: Path) -> None:
    def rest(chance: random.Random) -> None:
        if chance.random() < 0.7:
            time.sleep(chance.choice((0.0001, 0.001, 0.01, 0.1)))

    run_storm(agent, tmp_path, SEED, STORM, rest)


OLDER_CLIENT = """
import hashlib, os, shutil, signal, sys, time
import remote.bundle
log, other = sys.argv[1:]
class Other:
    path = staticmethod(lambda: other)
remote.bundle.build = lambda: Other
from remote.boxes import Box
from remote.client import BoxClient
content, pids, rotations = bytearray(), [], []
def take(event):
    name = type(event).__name__
    if name == "LogArrived":
        content.extend(event.data)
        client.consumed(event.subscription, len(event.data))
    elif name == "LogRotated":
        content.clear()
        rotations.append(event)
    elif hasattr(event, "host") and hasattr(event, "agent"):
        pids.append(event.host["pid"])
def until_read():
    end = time.monotonic() + 20
    while bytes(content) != open(log, "rb").read():
        assert time.monotonic() < end, len(content)
        time.sleep(0.01)
client = BoxClient(Box("local", kind="local", root=os.path.dirname(log)), take)
client.start()
client.follow(os.path.basename(log))
until_read()
os.kill(pids[-1], signal.SIGSTOP)
shutil.copy(log, log + ".copy")
os.replace(log + ".copy", log)
with open(log, "ab") as file:
    file.write(b"after the restore\\n")
os.kill(pids[-1], signal.SIGKILL)
until_read()
client.close()
print(len(rotations), hashlib.sha256(content).hexdigest())
"""


@pytest.fixture(params=OLDER.values(), ids=OLDER.keys())
def older(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The sources of an older version."""
    archive = subprocess.run(["git", "archive", request.param], cwd=REPOSITORY, capture_output=True)
    assert archive.returncode == 0, f"needs the history of this repository: {archive.stderr.decode()}"
    folder = tmp_path / "older"
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as tar:
        tar.extractall(folder)
    return folder


def python(folder: Path, script: str, *arguments: object) -> str:
    """Run a script with the sources of a folder."""
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@dataclass
class Agents:
    """Agents of two versions in turn."""

    bundles: list[Path]
    started: int = 0

    def transport(self, box: Box, ask: AskHostKey) -> LocalTransport:
        transport = LocalTransport()
        command = [sys.executable, "-I", str(self.bundles[self.started % len(self.bundles)]), "serve"]
        self.started += 1
        transport.command = lambda: command  # type: ignore[method-assign]
        return transport


def test_an_older_agent_and_this_client(older: Path, tmp_path: Path) -> None:
    """The link breaks ten times; the agents after it are of the older version and of this one in turn."""
    bundle = python(older, "import remote.bundle; print(remote.bundle.build().path())")
    agents = Agents([Path(bundle), build().path()])
    assert agents.bundles[0] != agents.bundles[1]
    log = tmp_path / "log"
    log.write_bytes(HEAD)
    box = Box("local", kind="local", root=str(tmp_path))
    with connected(box, process=True, transport_factory=agents.transport) as (client, recorder):
        subscription = client.follow("log")
        eventually(lambda: recorder.logs.get(subscription) == HEAD)
        for i in range(10):
            kill_the_agent_of_a_restored_log(client, recorder, subscription, log)
            assert agents.started == i + 2
        assert not [event for event in recorder.events if isinstance(event, LogRotated)]


def test_an_older_client_and_this_agent(older: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(HEAD)
    rotations, digest = python(older, OLDER_CLIENT, log, build().path()).split()
    assert (int(rotations), digest) == (0, sha256(log.read_bytes()))
    assert log.read_bytes() == HEAD + b"after the restore\n"
