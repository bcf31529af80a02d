"""TensorBoard of a run on a box: the real one, through a tunnel over sshd; it ends with its last viewer."""

from __future__ import annotations

import json
import socket
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.event_file_writer import EventFileWriter

from grpo_train.cli.tensorboard import IDLE_S
from grpo_train.run_dir import RunDir, create_run
from grpo_train.tracking.tensorboard import serve_events
from remote.boxes import Box
from remote.protocol import RemoteError
from remote.tunnels import Tunnel
from tests.remote.test_tunnels import listeners, up
from tests.support.agent import ask, eventually
from tests.support.browser import Browser, needs_chromium
from tests.support.clock import TestClock
from tests.support.engine import REPOSITORY
from tests.support.sshd import Sshd

VISIBLE_TEXT = "document.body?.innerText"


@pytest.fixture
def run(root: Path) -> RunDir:
    run = create_run(root, {}, "watched")
    writer = EventFileWriter(str(run.path / "tensorboard"))
    for step in range(3):
        writer.add_event(Event(step=step, summary=Summary(value=[Summary.Value(tag="reward", simple_value=step)])))
    writer.close()
    create_run(root, {}, "without")
    return run


@pytest.fixture
def engine_box(run: RunDir, sshd: Sshd, tmux_socket: str) -> Box:
    return Box(
        "h200", host="127.0.0.1", port=sshd.port, user=sshd.user, key=str(sshd.user_key), root=str(run.root),
        repo=str(REPOSITORY), engine=[sys.executable, "-m", "grpo_train.cli"], tmux_socket=tmux_socket,
    )  # fmt: skip


def page(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=30) as reply:
        data: bytes = reply.read()
    return data


@needs_chromium
def test_it_is_seen_through_a_tunnel(engine_box: Box) -> None:
    with up(engine_box) as client:
        first = ask(client, "open_tensorboard", run="watched", idempotency_key="a")
        assert ask(client, "open_tensorboard", run="watched", idempotency_key="b") == first, "one for all viewers"
        with Tunnel(client, "127.0.0.1", first["port"], local_port=16_007, holds=True) as tunnel:
            url = f"http://{tunnel.local}{first['path']}"
            assert b"<title>TensorBoard</title>" in page(url)
            both = (tunnel.local_port, first["port"])
            assert listeners(*both) == {(port, "127.0.0.1") for port in both}
            tags = eventually(lambda: json.loads(page(f"{url}data/plugin/scalars/tags")), 30)
            assert "reward" in json.dumps(tags)
            with pytest.raises(urllib.error.HTTPError, match="404"):
                page(f"http://{tunnel.local}/")  # the path is the key
            assert [row["dead"] for row in ask(client, "list_sessions")["sessions"]] == [False]
            browser = Browser()
            try:
                browser.visit(url)
                eventually(lambda: "reward" in str(browser.run(VISIBLE_TEXT)), 60, "the run's chart in the browser")
            finally:
                browser.close()
            shown = ask(client, "capture_pane", session=first["session"])["text"]
            assert first["path"] not in shown


def test_it_ends_after_its_last_connection(run: RunDir) -> None:
    announced: list[tuple[int, str]] = []
    clock = TestClock()
    folder = run.path / "tensorboard"
    thread = threading.Thread(target=serve_events, args=(folder, lambda *found: announced.append(found), IDLE_S, clock))
    thread.start()
    ((port, path),) = eventually(lambda: announced, 60)
    with socket.create_connection(("127.0.0.1", port)):  # a viewer that says nothing
        assert b"TensorBoard" in page(f"http://127.0.0.1:{port}{path}")
        clock.wait_for_threads(1)
        clock.advance(10 * IDLE_S)
        assert thread.is_alive()
    eventually(lambda: not thread.is_alive(), 30, clock=clock)


def test_a_run_without_events(engine_box: Box) -> None:
    with up(engine_box) as client, pytest.raises(RemoteError, match=r"tracking\.tensorboard: false") as error:
        ask(client, "open_tensorboard", run="without")
    assert error.value.code == "no_tensorboard"
