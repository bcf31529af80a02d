"""The agent of this machine, started before there is a client."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.boxes import Box
from remote.protocol import encode_parts
from remote.transports import local
from remote.transports.local import LocalTransport
from remote.transports.transport import await_hello, greeting


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LocalTransport]]:
    """Transports to close."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    transports: list[LocalTransport] = []
    yield transports
    for transport in transports:
        transport.close()


def pid_of(transport: LocalTransport) -> int:
    assert transport._process is not None
    return transport._process.pid


def ahead(greeting: bytes = b"") -> int:
    """Start an agent ahead; returns its process id."""
    local.start_ahead(lambda: greeting)
    assert local._ahead is not None
    process = local._ahead.take()
    assert process is not None
    return process.pid


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_next_transport_takes_it_over_once(opened: list[LocalTransport]) -> None:
    pid = ahead()
    for _ in range(2):
        opened.append(LocalTransport())
        opened[-1].open()
    assert pid_of(opened[0]) == pid
    assert pid_of(opened[1]) != pid


def test_one_that_has_ended_is_not_taken(opened: list[LocalTransport]) -> None:
    pid = ahead()
    os.kill(pid, 9)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    opened.append(LocalTransport())
    opened[0].open()
    assert pid_of(opened[0]) != pid


@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc")
def test_one_with_another_environment_is_ended(opened: list[LocalTransport]) -> None:
    pid = ahead()
    opened.append(LocalTransport({**os.environ, "PATH": f"{os.environ['PATH']}:/elsewhere"}))
    opened[0].open()
    assert pid_of(opened[0]) != pid
    assert not is_alive(pid)


def hello(transport: LocalTransport, box: Box) -> dict[str, Any]:
    return await_hello(transport, box, 30, threading.Event())[1]


def test_one_that_was_greeted_is_not_greeted_again(opened: list[LocalTransport], root: Path) -> None:
    box = Box("local", kind="local", root=str(root))
    pid = ahead(greeting(box))
    opened.append(LocalTransport())
    opened[0].open(greeting(box))  # a second one would end it
    assert hello(opened[0], box)["host"]["root"] == str(root)
    opened[0].send(b"".join(encode_parts({"type": "ping", "n": 1})))
    assert opened[0].receive(30)
    assert pid_of(opened[0]) == pid


@pytest.mark.skipif(not Path("/proc").exists(), reason="no /proc")
def test_one_with_another_greeting_is_ended(opened: list[LocalTransport], root: Path) -> None:
    box = Box("local", kind="local", root=str(root))
    pid = ahead(greeting(box))
    opened.append(LocalTransport())
    opened[0].open(greeting(box, readonly=True))
    assert hello(opened[0], box)["host"]["root"] == str(root)
    assert pid_of(opened[0]) != pid
    assert not is_alive(pid)


def test_one_that_cannot_start_is_left_to_the_transport(
    opened: list[LocalTransport], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(LocalTransport, "command", staticmethod(lambda: ["/nowhere"]))
        local.start_ahead(lambda: b"")
        assert local._ahead is not None
        local._ahead._thread.join()
    opened.append(LocalTransport())
    opened[0].open()
    assert pid_of(opened[0])
