"""The agent and its process of indexes, over pipes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from remote import gate
from remote.boxes import Box
from remote.events import BoxGreeted
from remote.protocol import RemoteError
from remote.transports.bootstrap import build
from tests.support.agent import RawAgent, connected, eventually
from tests.support.index import completion, make_run
from tests.support.logs import LogReader
from tests.support.mounts import mounted

LOG = "training_runs/one/logs/train_log.jsonl"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    log = make_run(tmp_path) / "train_log.jsonl"
    log.write_text(lines(1, 300))
    return log


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[RawAgent]:
    raw = RawAgent(tmp_path)
    yield raw
    raw.close()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[RawAgent]:
    """An agent as a process, whose indexes are another one."""
    raw = RawAgent(tmp_path, process=True)
    yield raw
    raw.close()


def lines(first: int, last: int) -> str:
    return "".join(f'{{"step": {i}, "reward": {i}}}\n' for i in range(first, last + 1))


def ask_once(agent: RawAgent, op: str, **params: Any) -> dict[str, Any]:
    return gate.reply(op, agent.request(op, **params))


def until_whole(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The reply once the index stands: a request waits for it only a moment."""
    while (reply := ask()).get("state") == "coarse":
        pass
    return reply


def ask(agent: RawAgent, op: str, **params: Any) -> dict[str, Any]:
    return until_whole(lambda: ask_once(agent, op, **params))


def children(agent: RawAgent) -> list[int]:
    """Processes of indexes that an agent has started."""
    found = psutil.Process(agent.hello["host"]["pid"]).children()
    return [child.pid for child in found if is_running(child.pid) and child.cmdline()[-1:] == ["index"]]


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_live_rows_are_followed_from_the_reply_on(log: Path, agent: RawAgent) -> None:
    with log.open("a") as file:
        file.write('{"step": 301')
    reply = ask(agent, "series", run="one", metrics=["reward"])
    assert (reply["state"], reply["rows"], reply["series"][0]["last"]) == ("whole", 300, 300)
    assert reply["offset"] == reply["cursor"].offset == len(lines(1, 300))
    reader = LogReader(agent, LOG)
    reader.disconnect()
    reader.content, reader._follow.cursor = b"", reply["cursor"]
    reader.connect()
    with log.open("a") as file:
        file.write("}\n" + lines(302, 303))
    reader.until(b'{"step": 301}\n' + lines(302, 303).encode())
    assert reader.rotations == 0
    assert ask(agent, "series", run="one", metrics=["reward"])["rows"] == 303


def test_the_client_gets_unpacked_replies(log: Path, tmp_path: Path) -> None:
    with connected(Box("here", kind="local", root=str(tmp_path))) as (client, _):
        reply = until_whole(lambda: client.request("series", run="one", metrics=["reward"], width=3).result(60))
        assert list(reply["series"][0]["columns"].count) == [100, 100, 100]
        assert client.request("show_step", run="one", at=7).result(60)["row"] == {"step": 7, "reward": 7}


def test_an_agent_in_memory_has_indexes_too(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with mounted(tmp_path / "cache", "read-only"):
        with connected(Box("here", kind="local", root=str(tmp_path)), process=True) as (client, recorder):
            assert recorder.wait_for(BoxGreeted).agent == build().sha256
            assert until_whole(lambda: client.request("metrics", run="one").result(60))["rows"] == 300
        assert not list((tmp_path / "cache").iterdir())


def test_a_crash_fails_the_request_and_no_other(log: Path, process: RawAgent) -> None:
    ask(process, "metrics", run="one")
    (child,) = children(process)
    os.kill(child, signal.SIGSTOP)
    process.send({"type": "request", "id": 1, "op": "metrics", "params": {"run": "one"}})
    assert process.request("list_runs")["ok"]  # nothing else waits for it
    process.send({"type": "ping", "n": 5})
    process.until(lambda frame: frame["type"] == "pong")
    os.kill(child, signal.SIGKILL)
    failed = process.until(lambda frame: frame["type"] == "response" and frame["id"] == 1)
    assert failed["error"]["code"] == "index_failed"
    assert ask(process, "metrics", run="one")["rows"] == 300
    assert children(process) != [child]


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_it_ends_with_the_agent(log: Path, process: RawAgent, how: str) -> None:
    assert not children(process)
    ask(process, "metrics", run="one")
    (child,) = children(process)
    if how == "closed":
        process.close()
    else:
        os.kill(process.hello["host"]["pid"], signal.SIGKILL)
    eventually(lambda: not is_running(child))


def test_it_ends_when_nothing_is_asked() -> None:
    program = "from remote.index.process import main; from tests.support.clock import LeapingClock; "
    program += "raise SystemExit(main(['index'], LeapingClock()))"
    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, timeout=60)
    assert (done.returncode, done.stdout) == (0, b"")


def test_a_pattern_that_takes_forever_ends_it(log: Path, tmp_path: Path) -> None:
    (log.parent / "rollouts.jsonl").write_text(completion(1, 0, 0, completion="a" * 60 + "!"))
    child = subprocess.Popen(
        [sys.executable, "-I", "-S", str(build().path()), "index", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    params = {"run": "one", "where": ["completion", "~", "(a+)+$"]}
    place = {"root": str(tmp_path), "run": str(log.parents[1]), "follow_links": False}
    request = {"id": 1, "op": "search_rollouts", "params": params, **place}
    out, _ = child.communicate(json.dumps(request).encode() + b"\n", timeout=60)  # the end of its input comes with it
    assert (out, child.returncode) == (b"", -signal.SIGALRM)


def test_two_agents_index_one_log(log: Path, tmp_path: Path, process: RawAgent) -> None:
    log.write_text(lines(1, 60_000))
    other = RawAgent(tmp_path, process=True)
    replies: list[dict[str, Any]] = [{}, {}]
    for _ in range(500):
        replies = [ask_once(one, "series", run="one", metrics=["reward"]) for one in (process, other)]
        if all(reply["state"] == "whole" for reply in replies):
            break
    assert [reply["rows"] for reply in replies] == [60_000, 60_000]
    assert replies[0]["series"] == replies[1]["series"]
    assert len(list((tmp_path / ".grpo" / "index").iterdir())) == 1
    other.close()


def test_samples_are_found_over_the_link(log: Path, agent: RawAgent) -> None:
    (log.parent / "rollouts.jsonl").write_text("".join(completion(i, 0, j) for i in (1, 2) for j in range(3)))
    assert list(ask(agent, "rollout_steps", run="one")["table"].samples) == [3, 3]
    found = ask(agent, "rollout_step", run="one", step=2)["samples"]
    texts = ask(agent, "samples", run="one", offsets=[row["offset"] for row in found])["samples"]
    assert [row["completion"] for row in texts] == ["So, 72."] * 3
    page = ask(agent, "search_rollouts", run="one", where=["and", ["sample", "=", 1]], limit=1)
    assert (page["matches"][0]["step"], page["next"] is not None) == (2, True)
    with pytest.raises(RemoteError, match="field of a sample"):
        ask(agent, "search_rollouts", run="one", where=["height", "=", 1])


def test_only_a_log_of_the_run_is_read(log: Path, tmp_path: Path, process: RawAgent) -> None:
    outside = tmp_path.parent / "outside.jsonl"
    outside.write_text(lines(1, 3))
    for make in (lambda: log.symlink_to(outside), lambda: os.mkfifo(log), lambda: log.mkdir()):
        log.unlink()
        make()
        with pytest.raises(RemoteError) as error:
            ask(process, "series", run="one", metrics=["reward"])
        assert error.value.code == "bad_path"
    with pytest.raises(RemoteError, match="no run named 'two'"):
        ask(process, "metrics", run="two")


def test_a_log_that_cannot_be_read_is_reported(log: Path, agent: RawAgent) -> None:
    ask(agent, "metrics", run="one")
    log.unlink()
    (log.parent / "events.jsonl").mkdir()  # not an events file: no row is superseded
    assert ask(agent, "metrics", run="one")["rows"] == 0
    log.write_text(lines(1, 7))
    assert ask(agent, "metrics", run="one")["rows"] == 7


def test_files_are_read_and_searched(agent: RawAgent, log: Path) -> None:
    files = ask(agent, "log_files", run="one")["files"]
    assert [file["path"] for file in files] == [LOG]
    assert ask(agent, "read_log", run="one", path=LOG, line=200, after=1)["lines"][0]["text"].startswith('{"step": 200')
    found = ask(agent, "search_log", run="one", path=LOG, pattern="reward.*99}")
    assert (found["total"], found["searched"]) == (3, 1)
    assert ask(agent, "log_bytes", run="one", path=LOG, count=8)["data"] == b'{"step":'
    assert ask(agent, "box_facts")["disks"]
