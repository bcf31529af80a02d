"""The fixtures of the link's other tests."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote.conftest import _own_directories, box, proxy, root, ssh_box, sshd, tmux_socket
from tests.support.agent import RawAgent
from tests.support.logs import root_of
from tests.support.ssh_lab import Lab, lab

__all__ = ["_own_directories", "box", "chance", "proxy", "root", "ssh_box", "sshd", "tmux_socket"]


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Dice that fall the same way for a test each time; LINK_SEED changes them."""
    return random.Random(f"{os.environ.get('LINK_SEED', '1')} {request.node.name}")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawAgent]:
    """One agent for every test that needs no other settings."""
    raw = RawAgent(tmp_path_factory.mktemp("root"))
    yield raw
    raw.close()


@pytest.fixture
def folder(shared: RawAgent, request: pytest.FixtureRequest) -> Path:
    """A folder of the root for one test."""
    path = root_of(shared) / f"test_{abs(hash(request.node.nodeid))}"
    path.mkdir()
    return path


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A laptop whose control sockets lie in its own directory."""
    with lab() as place:
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.folder))
        yield place
