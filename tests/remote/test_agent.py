"""The agent frame by frame, in an empty environment: tails, credit, topics, exit."""

from __future__ import annotations

import base64
import getpass
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir.clock import CLOCK
from grpo_train.run_dir.version import FORMAT, VERSION
from remote.protocol import INITIAL_CREDIT, MAX_DATA, encode
from remote.protocol.check import mismatch
from remote.protocol.rows import Check, HostFacts
from remote.transports.bootstrap import build
from tests.support.agent import RawAgent, ThreadTransport, eventually
from tests.support.clock import TestClock
from tests.support.patience import PATIENCE


@pytest.fixture
def agent(root: Path) -> Iterator[RawAgent]:
    raw = RawAgent(root)
    yield raw
    raw.close()


@pytest.fixture
def process(root: Path) -> Iterator[RawAgent]:
    """An agent as a process."""
    raw = RawAgent(root, process=True)
    yield raw
    raw.close()


def subscribe(agent: RawAgent, number: int, path: str, credit: int = INITIAL_CREDIT, **params: Any) -> None:
    params = {"path": path, "cursor": None, **params}
    agent.send({"type": "subscribe", "id": number, "topic": "log", "params": params, "credit": credit})


def data(agent: RawAgent, number: int) -> bytes:
    """All data of a subscription; asserts that it has no gap."""
    whole, position = b"", None
    for frame in agent.frames:
        if frame.get("id") != number:
            continue
        if frame["type"] == "rotated":
            whole, position = b"", 0
        if frame["type"] == "data":
            piece = frame["text"].encode() if "text" in frame else base64.b64decode(frame["base64"])
            assert position in (None, frame["offset"])
            position = frame["offset"] + len(piece)
            whole += piece
    return whole


def read_until(agent: RawAgent, number: int, wanted: bytes) -> None:
    deadline = time.monotonic() + PATIENCE * 10
    while data(agent, number) != wanted:
        assert time.monotonic() < deadline, data(agent, number)[-200:]
        agent.read(0.05)


def test_hello_describes_the_host(process: RawAgent, root: Path) -> None:
    assert process.hello["protocol"] == 1
    assert process.hello["agent"] == build().sha256
    assert process.hello["host"]["root"] == str(root)
    assert process.hello["host"]["cpu_count"] == os.cpu_count()
    assert process.hello["host"]["user"] == getpass.getuser()
    assert process.hello["host"].keys() == HostFacts.__annotations__.keys()
    assert mismatch(process.hello["host"], HostFacts) == ""
    assert (process.hello["version"], process.hello["format"]) == (VERSION, FORMAT)


def test_pong_has_the_time_of_the_box(process: RawAgent) -> None:
    before = time.time()
    process.send({"type": "ping", "n": 7})
    pong = process.until(lambda frame: frame["type"] == "pong")
    assert pong["n"] == 7
    assert before <= pong["time"] <= time.time()


def test_findings_of_doctor_are_typed(agent: RawAgent) -> None:
    checks = agent.request("doctor")["result"]["checks"]
    assert {mismatch(check, Check) for check in checks} == {""}
    assert agent.hello["engine"] == {"version": "", "format": 0}


def test_a_log_is_followed_before_it_exists(agent: RawAgent, root: Path) -> None:
    subscribe(agent, 1, "training_runs/r/logs/console.log")
    agent.let_pass(4)
    log = root / "training_runs/r/logs/console.log"
    log.parent.mkdir(parents=True)
    content = b""
    for piece in (b"one\n", b"tw", b"o\n\xff\xfe\0", "drei…\n".encode(), random.Random(0).randbytes(90_000)):
        with log.open("ab") as file:
            file.write(piece)
        content += piece
        read_until(agent, 1, content)


def test_credit_limits_what_is_sent(agent: RawAgent, root: Path) -> None:
    content = random.Random(1).randbytes(300_000)
    (root / "log").write_bytes(content)
    subscribe(agent, 1, "log", credit=1_000)
    agent.let_pass(4)
    assert data(agent, 1) == content[:1_000]
    agent.send({"type": "credit", "id": 1, "bytes": 50_000})
    agent.let_pass(4)
    assert data(agent, 1) == content[:51_000]
    assert max(len(f.get("base64", "")) for f in agent.frames) <= MAX_DATA * 2
    agent.send({"type": "credit", "id": 1, "bytes": 1_000_000})
    read_until(agent, 1, content)


@pytest.mark.parametrize(
    ("tail_bytes", "expected"),
    [(0, b""), (3, b"33\n"), (4, b"333\n"), (5, b"333\n"), (8, b"222\n333\n"), (10_000, b"111\n222\n333\n")],
)
def test_a_tail_starts_at_a_line(agent: RawAgent, root: Path, tail_bytes: int, expected: bytes) -> None:
    (root / "log").write_bytes(b"111\n222\n333\n")
    subscribe(agent, 1, "log", tail_bytes=tail_bytes)
    agent.let_pass(4)
    with (root / "log").open("ab") as file:
        file.write(b"444\n")
    read_until(agent, 1, expected + b"444\n")


def test_replaced_and_truncated_files_are_rotated(agent: RawAgent, root: Path) -> None:
    log = root / "log"
    log.write_bytes(b"old and long\n")
    subscribe(agent, 1, "log")
    read_until(agent, 1, b"old and long\n")
    (root / "new").write_bytes(b"another beginning, longer than before\n")
    os.replace(root / "new", log)
    read_until(agent, 1, b"another beginning, longer than before\n")
    log.write_bytes(b"short\n")
    read_until(agent, 1, b"short\n")
    assert sum(frame["type"] == "rotated" for frame in agent.frames) == 2


def test_only_a_fitting_cursor_continues(agent: RawAgent, root: Path) -> None:
    (root / "log").write_bytes(b"one\ntwo\n")
    subscribe(agent, 1, "log")
    frame = agent.until(lambda f: f["type"] == "data")
    cursor = {"path": "log", "offset": 4, "head_length": 4, "head_sha256": frame["head"][1]}
    whole = {"path": "log", "offset": 4, "head_length": frame["head"][0], "head_sha256": frame["head"][1]}
    subscribe(agent, 2, "log", cursor=whole)
    read_until(agent, 2, b"two\n")
    subscribe(agent, 3, "log", cursor=cursor)  # the hash of eight bytes, claimed for four: another file
    read_until(agent, 3, b"one\ntwo\n")
    assert [f["id"] for f in agent.frames if f["type"] == "rotated"] == [3]


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd", "a/../../b", "", "a//b", "./a", "a\0b"])
def test_paths_outside_the_root_are_refused(agent: RawAgent, path: str) -> None:
    subscribe(agent, 1, path)
    closed = agent.until(lambda frame: frame["type"] == "closed")
    assert closed["error"]["code"] == "bad_path"


def test_a_pipe_is_refused_without_blocking(agent: RawAgent, root: Path) -> None:
    os.mkfifo(root / "pipe")
    subscribe(agent, 1, "pipe")
    assert agent.until(lambda frame: frame["type"] == "closed")["id"] == 1
    agent.send({"type": "ping", "n": 5})
    agent.until(lambda frame: frame["type"] == "pong" and frame["n"] == 5)


def test_topics_are_sent_when_they_change(agent: RawAgent) -> None:
    for number, topic in enumerate(("runs", "sessions", "gpu", "nonsense"), start=1):
        agent.send({"type": "subscribe", "id": number, "topic": topic, "params": {}, "credit": 0})
    assert agent.until(lambda f: f["type"] == "update" and f["id"] == 1)["value"] == {"runs": []}
    agent.until(lambda f: f["type"] == "update" and f["id"] == 2)
    gpu = agent.until(lambda f: f["type"] == "update" and f["id"] == 3)["value"]
    assert gpu["gpus"] or gpu["note"]
    assert agent.until(lambda f: f["type"] == "closed")["error"]["code"] == "bad_request"
    agent.let_pass(30)
    assert sum(frame["type"] == "update" and frame["id"] == 1 for frame in agent.frames) == 1


def test_a_slow_client_costs_no_memory(process: RawAgent, root: Path) -> None:
    """It reads nothing until the agent has read all that it may send, which waits in the agent."""
    (root / "log").write_bytes(os.urandom(5_000_000))
    proc = Path(f"/proc/{process.hello['host']['pid']}")
    for number in range(1, 40):
        subscribe(process, number, "log")
    eventually(lambda: int((proc / "io").read_text().split()[1]) >= 39 * INITIAL_CREDIT)
    peak = int((proc / "status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    assert peak < 40 * INITIAL_CREDIT * 2 + 60_000_000
    process.send({"type": "ping", "n": 1})
    process.until(lambda frame: frame["type"] == "pong")


def agent_process(tmp_path: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", str(build().path()), "serve", *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, env={"HOME": str(tmp_path)})


def test_it_exits_at_end_of_input_and_garbage(tmp_path: Path) -> None:
    ended, garbage = agent_process(tmp_path), agent_process(tmp_path)
    assert ended.communicate(timeout=60)[0] == b""
    assert garbage.communicate(b"GET / HTTP/1.1\r\n\r\n", timeout=60)[0] == b""
    assert (ended.returncode, garbage.returncode) == (0, 0)


def test_it_exits_after_a_silence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clock = TestClock()
    transport = ThreadTransport(CLOCK, clock)
    transport.open()
    clock.wait_for_threads(3)
    clock.advance(10)
    transport.send(encode({"type": "ping", "n": 1}))
    assert transport.receive(60)
    clock.advance(12)
    assert transport.receive(0) is None, "silent for less than 12 s"
    clock.advance(1)
    assert transport.receive(60) == b""
    assert "nothing received for 12 s, exiting" in capsys.readouterr().err
    transport.close()
    transport.join()


def test_unknown_frames_and_keys_are_ignored(agent: RawAgent) -> None:
    agent.send({"type": "from the future", "x": 1})
    response = agent.request("make_coffee")
    assert response["error"]["code"] == "bad_request"
    assert agent.request("doctor", colour="blue")["ok"]


def test_a_request_before_hello_is_fatal(tmp_path: Path) -> None:
    process = agent_process(tmp_path)
    out, errors = process.communicate(encode({"type": "request", "id": 1, "op": "doctor", "params": {}}), timeout=60)
    assert out == b""
    assert b"before hello" in errors


def test_a_thousand_runs_are_listed(process: RawAgent, root: Path) -> None:
    for i in range(1000):
        folder = root / "training_runs" / f"run_{i:04}"
        (folder / "logs").mkdir(parents=True)
        (folder / "launch.json").write_text('{"time": "2026-01-01T00:00:00Z", "config_text": "x"}')
        (folder / "status.json").write_text('{"state": "finished"}')
    began = time.monotonic()
    rows = process.request("list_runs")["result"]["runs"]
    assert len(rows) == 1000
    assert rows[0]["run"] == "run_0999"
    assert time.monotonic() - began < PATIENCE * 5


def test_an_unreadable_run_hides_no_other(agent: RawAgent, root: Path) -> None:
    for name, status in (
        ("good", '{"state": "finished"}'),
        ("bad", "{torn"),
        ("odd", '{"state": "running", "pid": "x"}'),
    ):
        folder = root / "training_runs" / name
        folder.mkdir(parents=True)
        (folder / "launch.json").write_text("{}")
        (folder / "status.json").write_text(status)
    rows = {row["run"]: row["state"] for row in agent.request("list_runs")["result"]["runs"]}
    assert rows["good"] == "finished"
    assert rows["bad"] in ("unreadable", "lost")
    assert rows["odd"] in ("unreadable", "lost")


def test_children_cannot_read_the_input(process: RawAgent) -> None:
    assert os.readlink(f"/proc/{process.hello['host']['pid']}/fd/0") == "/dev/null"
    eventually(
        lambda: (
            os.readlink(f"/proc/{process.hello['host']['pid']}/fd/1")
            == os.readlink(f"/proc/{process.hello['host']['pid']}/fd/2")
        )
    )
