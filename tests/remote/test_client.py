"""The client: requests, reconnects and credit, over scripted transports and the local agent."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from grpo_train.run_dir.clock import SystemClock
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, Link, LinkChanged, LogArrived, LogFailed, LogRotated, RunsReported
from remote.protocol import INITIAL_CREDIT, Cursor, Decoder, RemoteError, encode, encode_data, encode_parts
from remote.transports import Refused, Unreachable
from tests.support.agent import QUICK, Recorder, connected, eventually
from tests.support.patience import PATIENCE

BOX = Box("scripted", host="nowhere")


class ScriptedTransport:
    """A transport whose agent sends only what the test scripts."""

    def __init__(self, failure: Exception | None = None, answers: bool = True) -> None:
        self.address = ""
        self.heard: list[dict[str, Any]] = []
        self.answers = answers
        self._failure = failure
        self._decoder = Decoder()
        self._out: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ended = False

    def open(self, greeting: bytes = b"") -> None:
        if self._failure:
            raise self._failure
        self.send(greeting)

    def send(self, data: bytes) -> None:
        for frame in self._decoder.feed(data):
            self.heard.append(frame)
            if frame["type"] == "hello":
                self.say({"type": "hello", "protocol": 1, "agent": "x", "host": {}})
            if frame["type"] == "ping" and self.answers:
                self.say({"type": "pong", "n": frame["n"]})

    def say(self, *frames: dict[str, Any] | bytes) -> None:
        with self._changed:
            for frame in frames:
                self._out.extend([frame] if isinstance(frame, bytes) else encode_parts(frame))
            self._changed.notify_all()

    def receive(self, timeout: float) -> bytes | None:
        with self._changed:
            if not self._out and not self._ended:
                self._changed.wait(timeout)
            if self._out:
                return self._out.popleft()
            return b"" if self._ended else None

    def end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def close(self) -> None:
        self.end()

    def describe(self) -> str:
        return "scripted"

    def algorithms(self) -> dict[str, str]:
        return {}

    def error_tail(self) -> str:
        return ""

    def wait_heard(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return eventually(lambda: next((frame for frame in list(self.heard) if condition(frame)), None))  # type: ignore


class Script:
    """A transport factory: the n-th connection uses the n-th transport."""

    def __init__(self, *transports: ScriptedTransport) -> None:
        self.transports = list(transports)
        self.made: list[ScriptedTransport] = []

    def __call__(self, box: Box, ask: Any) -> ScriptedTransport:
        transport = self.transports.pop(0) if self.transports else ScriptedTransport(Unreachable("nobody there"))
        self.made.append(transport)
        return transport


def test_reads_are_sent_again_after_a_reconnect() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with connected(BOX, transport_factory=Script(first, second)) as (client, _):
        answer = client.request("list_runs")
        first.wait_heard(lambda frame: frame.get("op") == "list_runs")
        first.end()
        again = second.wait_heard(lambda frame: frame.get("op") == "list_runs")
        second.say({"type": "response", "id": again["id"], "ok": True, "result": {"runs": []}})
        assert answer.result(60) == {"runs": []}


def test_an_interrupted_launch_is_not_repeated() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with connected(BOX, transport_factory=Script(first, second)) as (client, recorder):
        recorder.wait_link(Link.CONNECTED)
        answer = client.request("launch", config_text="x")
        first.wait_heard(lambda frame: frame.get("op") == "launch")
        mark = recorder.mark()
        first.end()
        with pytest.raises(RemoteError, match="before 'launch' was answered") as caught:
            answer.result(60)
        assert caught.value.code == "unreachable"
        recorder.wait_reconnected(mark)
        second.wait_heard(lambda frame: frame["type"] == "ping")
        assert not [frame for frame in second.heard if frame.get("op") == "launch"]


def test_a_malformed_reply_is_an_error() -> None:
    first, answered = ScriptedTransport(), list[dict[str, Any]]()
    with connected(BOX, transport_factory=Script(first)) as (client, _):
        for result in ({}, {"runs": "none"}, [], None):
            reply = client.request("list_runs")
            request = first.wait_heard(lambda frame: frame.get("op") == "list_runs" and frame not in answered)
            answered.append(request)
            first.say({"type": "response", "id": request["id"], "ok": True, "result": result})
            with pytest.raises(RemoteError) as caught:
                reply.result(60)
            assert caught.value.code == "bad_reply", result


def test_requests_never_hang() -> None:
    with connected(BOX, transport_factory=Script()) as (client, recorder):
        recorder.wait_link(Link.LOST)
        with pytest.raises(RemoteError) as caught:
            client.request("stop", run="x").result(60)
        assert caught.value.code == "unreachable"
        with pytest.raises(RemoteError) as caught:
            client.request("list_runs", timeout=0.3).result(60)
        assert caught.value.code == "unreachable"
    silent = ScriptedTransport()
    with connected(BOX, transport_factory=Script(silent)) as (client, recorder):
        recorder.wait_link(Link.CONNECTED)
        with pytest.raises(RemoteError) as caught:
            client.request("list_runs", timeout=0.3).result(60)
        assert caught.value.code == "timeout"
        pending = client.request("list_runs")
    with pytest.raises(RemoteError):
        pending.result(60)
    with pytest.raises(RemoteError):
        client.request("list_runs").result(60)
    with pytest.raises(RemoteError, match="cannot be sent"):
        client.request("launch", config_text=b"bytes").result(60)
    with pytest.raises(ValueError, match="unknown operation"):
        client.request("nonsense")


def test_a_refusal_waits_for_reconnect_now() -> None:
    script = Script(ScriptedTransport(Refused("no key fits")), ScriptedTransport())
    with connected(BOX, transport_factory=script) as (client, recorder):
        assert recorder.wait_link(Link.REFUSED).detail == "no key fits"
        with pytest.raises(RemoteError, match="no key fits"):
            client.request("list_runs").result(60)
        time.sleep(0.3)
        assert len(script.made) == 1
        client.reconnect_now()
        recorder.wait_link(Link.CONNECTED)


def test_a_retry_from_the_event_of_a_refusal_counts() -> None:
    script = Script(ScriptedTransport(Refused("no key fits")), ScriptedTransport())
    recorder = Recorder()

    def on_event(event: Any) -> None:
        recorder(event)
        if isinstance(event, LinkChanged) and event.state is Link.REFUSED:
            client.reconnect_now()

    client = BoxClient(BOX, on_event, transport_factory=script, timing=QUICK)
    client.start()
    recorder.wait_link(Link.CONNECTED)
    client.close()


def test_back_off_grows_until_reconnect_now() -> None:
    timing = dataclasses.replace(QUICK, backoff_first=0.2, backoff_most=60.0)
    script = Script(*[ScriptedTransport(Unreachable("no")) for _ in range(4)], ScriptedTransport())
    with connected(BOX, transport_factory=script, timing=timing) as (client, recorder):
        eventually(lambda: len(script.made) == 4)
        waits = eventually(
            lambda: (
                (w := [e.retry_in_s for e in recorder.events if isinstance(e, LinkChanged) and e.retry_in_s])[3:] and w
            )
        )
        assert waits == sorted(waits)
        assert waits[3] > 4 * waits[0]
    timing = dataclasses.replace(QUICK, backoff_first=60.0, backoff_most=60.0)
    script = Script(ScriptedTransport(Unreachable("no")), ScriptedTransport())
    with connected(BOX, transport_factory=script, timing=timing) as (client, recorder):
        recorder.wait_link(Link.LOST)
        client.reconnect_now()
        recorder.wait_link(Link.CONNECTED, timeout=2)


def test_a_link_that_stood_is_retried_at_once() -> None:
    """The first retry, which a hole in the network may outlast, does not count as a failure."""
    timing = dataclasses.replace(QUICK, backoff_first=1.0, backoff_most=60.0, settled_after=0.0)
    first = ScriptedTransport()
    with connected(BOX, transport_factory=Script(first), timing=timing) as (_, recorder):
        recorder.wait_link(Link.CONNECTED)
        first.end()
        waits = eventually(
            lambda: (
                (w := [e.retry_in_s for e in recorder.events if isinstance(e, LinkChanged) and e.retry_in_s])[2:] and w
            )
        )
        assert waits[0] == 0.1
        assert 0.8 <= waits[1] <= 1.2
        assert 1.6 <= waits[2] <= 2.4


class Suspendable(SystemClock):
    """This machine's clock, as if it had been suspended."""

    asleep_s = 0.0

    def boottime(self) -> float:
        return self.monotonic() + self.asleep_s


def test_a_resumed_machine_reconnects_at_once() -> None:
    clock = Suspendable()
    timing = dataclasses.replace(QUICK, backoff_first=0.1, lost_after=60.0, stale_after=50.0)
    script = Script(ScriptedTransport(), ScriptedTransport())
    options = {"transport_factory": script, "timing": timing, "clock": clock}
    with connected(BOX, **options) as (_, recorder):
        recorder.wait_link(Link.CONNECTED)
        clock.asleep_s = 3600.0
        assert "suspended" in recorder.wait_link(Link.LOST, timeout=3).detail
        eventually(lambda: len(script.made) == 2)


def test_silence_is_stale_then_lost() -> None:
    script = Script(ScriptedTransport(answers=False), ScriptedTransport())
    began = time.monotonic()
    with connected(BOX, transport_factory=script) as (_, recorder):
        recorder.wait_link(Link.STALE)
        assert 0.5 < time.monotonic() - began < PATIENCE * 1.4
        recorder.wait_link(Link.LOST)
        assert 1.4 < time.monotonic() - began < PATIENCE * 3
        recorder.wait_reconnected(0)


def test_another_protocol_version_is_refused() -> None:
    class Old(ScriptedTransport):
        def send(self, data: bytes) -> None:
            self.say({"type": "hello", "protocol": 99})

    with connected(BOX, transport_factory=Script(Old())) as (_, recorder):
        assert "99" in recorder.wait_link(Link.REFUSED).detail


def test_garbage_from_the_box_breaks_only_the_link() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with connected(BOX, transport_factory=Script(first, second)) as (_, recorder):
        recorder.wait_link(Link.CONNECTED)
        mark = recorder.mark()
        first.say(b"Segmentation fault\n")
        assert "invalid JSON" in recorder.wait_link(Link.LOST, after=mark).detail
        recorder.wait_reconnected(mark)


def test_a_gap_in_a_log_is_not_passed_on() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with connected(BOX, transport_factory=Script(first, second)) as (client, recorder):
        log = client.follow("log")
        wire = first.wait_heard(lambda frame: frame.get("topic") == "log")["id"]
        first.say(encode_data(wire, 0, b"one", (3, "h")), encode_data(wire, 5, b"gap"))
        again = second.wait_heard(lambda frame: frame.get("topic") == "log")
        assert Cursor.from_json(again["params"]["cursor"]) == Cursor("log", 3, 3, "h")
        second.say(encode_data(again["id"], 3, b"two"))
        eventually(lambda: recorder.logs.get(log) == b"onetwo")


def test_outstanding_credit_survives_a_reconnect() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with connected(BOX, transport_factory=Script(first, second)) as (client, recorder):
        recorder.returns_credit = False
        log = client.follow("log")
        wire = first.wait_heard(lambda frame: frame.get("topic") == "log")
        assert wire["credit"] == INITIAL_CREDIT
        first.say(encode_data(wire["id"], 0, b"x" * 10_000), encode_data(wire["id"], 10_000, b"y" * 10_000))
        eventually(lambda: len(recorder.logs.get(log, b"")) == 20_000)
        client.consumed(log, 5_000)
        assert not [frame for frame in first.heard if frame["type"] == "credit"]
        first.end()
        again = second.wait_heard(lambda frame: frame.get("topic") == "log")
        assert again["credit"] == INITIAL_CREDIT - 15_000
        client.consumed(log, 15_000)
        assert second.wait_heard(lambda frame: frame["type"] == "credit")["bytes"] == 15_000


def test_unfollowed_and_refused_logs() -> None:
    first = ScriptedTransport()
    with connected(BOX, transport_factory=Script(first)) as (client, recorder):
        log = client.follow("log")
        wire = first.wait_heard(lambda frame: frame.get("topic") == "log")["id"]
        client.unfollow(log)
        first.wait_heard(lambda frame: frame == {"type": "unsubscribe", "id": wire})
        first.say(encode_data(wire, 0, b"late"))
        other = client.follow("other")
        wire = first.wait_heard(lambda frame: frame.get("params", {}).get("path") == "other")["id"]
        first.say(encode({"type": "closed", "id": wire, "error": {"code": "bad_path", "message": "no"}}))
        assert recorder.wait_for(LogFailed) == LogFailed(other, "other", "no")
        assert not [event for event in recorder.events if isinstance(event, LogArrived)]


def test_a_killed_agent_is_replaced_and_logs_continue(box: Box, root: Path) -> None:
    log = root / "log"
    log.write_bytes(b"".join(b"line %d\n" % i for i in range(20_000)))
    with connected(box) as (client, recorder):
        number = client.follow("log")
        mark = 0
        for _ in range(3):
            greeted = recorder.wait(lambda event: isinstance(event, BoxGreeted), after=mark)
            assert isinstance(greeted, BoxGreeted)
            size = len(recorder.logs.get(number, b""))
            with log.open("ab") as file:
                file.write(b"more\n" * 30_000)
            eventually(lambda size=size: len(recorder.logs.get(number, b"")) > size)  # type: ignore[misc]
            mark = recorder.mark()
            os.kill(greeted.host["pid"], signal.SIGKILL)
            recorder.wait_reconnected(mark)
        eventually(lambda: recorder.logs[number] == log.read_bytes())
        os.replace(_written(root / "new", b"new\n"), log)
        recorder.wait_for(LogRotated)
        eventually(lambda: recorder.logs[number] == b"new\n")


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_methods_may_be_called_from_on_event(box: Box, root: Path) -> None:
    (root / "log").write_bytes(b"x" * 600_000)
    done = threading.Event()
    received = bytearray()

    def on_event(event: Any) -> None:
        if isinstance(event, BoxGreeted):
            client.follow("log")
            client.request("doctor").add_done_callback(lambda future: client.request("list_runs"))
        if isinstance(event, LogArrived):
            received.extend(event.data)
            client.consumed(event.subscription, len(event.data))
            if len(received) == 600_000:
                client.unfollow(event.subscription)
                client.close()
                done.set()

    client = BoxClient(box, on_event, timing=QUICK)
    client.start()
    assert done.wait(60)
    eventually(lambda: client.link is Link.CLOSED)


def test_topics_arrive_without_a_request(box: Box) -> None:
    with connected(box) as (_, recorder):
        recorder.wait_for(RunsReported)
        assert recorder.wait_link(Link.CONNECTED).state is Link.CONNECTED
        latency = recorder.wait(lambda e: isinstance(e, LinkChanged) and e.latency_ms is not None)
        assert isinstance(latency, LinkChanged)
        assert latency.latency_ms is not None
        assert 0 < latency.latency_ms < PATIENCE * 1000


def test_close_without_start_and_twice(box: Box) -> None:
    client = BoxClient(box, Recorder())
    client.close()
    recorder = Recorder()
    other = BoxClient(box, recorder)
    other.start()
    other.close()
    other.close()
    recorder.wait_link(Link.CLOSED)
