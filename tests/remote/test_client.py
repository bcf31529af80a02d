"""The client: requests, reconnects and credit, over scripted transports and the local agent."""

from __future__ import annotations

import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from remote.base import Refused, Unreachable
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, Link, LinkChanged, LogArrived, LogFailed, LogRotated, RunsReported
from remote.protocol import INITIAL_CREDIT, Cursor, Decoder, RemoteError, encode, encode_data, encode_parts
from tests.support.agent import Recorder, connected, eventually
from tests.support.clock import TestClock
from tests.support.patience import PATIENCE

BOX = Box("scripted", kind="local")


class ScriptedTransport:
    """A transport whose agent sends only what the test scripts."""

    def __init__(self, failure: Exception | None = None, answers: bool = True) -> None:
        self.clock = TestClock()
        self.address = ""
        self.heard: list[dict[str, Any]] = []
        self.answers = answers
        self._failure = failure
        self._decoder = Decoder()
        self._out: deque[bytes] = deque()
        self._changed = threading.Event()
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
        for frame in frames:
            self._out.extend([frame] if isinstance(frame, bytes) else encode_parts(frame))
        self._changed.set()

    def receive(self, timeout: float) -> bytes | None:
        if not self._out and not self._ended:
            self.clock.wait(self._changed, timeout)
        self._changed.clear()
        if self._out:
            return self._out.popleft()
        return b"" if self._ended else None

    def end(self) -> None:
        self._ended = True
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    def close(self) -> None:
        self.end()

    def describe(self) -> str:
        return "scripted"

    def algorithms(self) -> dict[str, str]:
        return {}

    def error_tail(self) -> str:
        return ""

    def wait_heard(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        return eventually(
            lambda: next((frame for frame in list(self.heard) if condition(frame)), None), clock=self.clock
        )  # type: ignore


class Script:
    """A transport factory: the n-th connection uses the n-th transport."""

    def __init__(self, *transports: ScriptedTransport, clock: TestClock) -> None:
        self.transports = list(transports)
        self.clock = clock
        for transport in transports:
            transport.clock = clock
        self.made: list[ScriptedTransport] = []

    def __call__(self, box: Box, ask: Any) -> ScriptedTransport:
        transport = self.transports.pop(0) if self.transports else ScriptedTransport(Unreachable("nobody there"))
        transport.clock = self.clock
        self.made.append(transport)
        return transport


@contextmanager
def scripted(*transports: ScriptedTransport) -> Iterator[tuple[BoxClient, Recorder, Script, TestClock]]:
    """A client of scripted connections and its clock, which stands."""
    clock = TestClock()
    script = Script(*transports, clock=clock)
    with connected(BOX, transport_factory=script, clock=clock) as (client, recorder):
        yield client, recorder, script, clock


def expire(clock: TestClock, future: Future[Any]) -> RemoteError:
    """The error of a request once its time has passed."""
    clock.advance_until(future.done)
    with pytest.raises(RemoteError) as caught:
        future.result(0)
    return caught.value


def waits(recorder: Recorder) -> list[float]:
    """The waits before connections, in seconds."""
    return [event.retry_in_s for event in recorder.events if isinstance(event, LinkChanged) and event.retry_in_s]


def test_reads_are_sent_again_after_a_reconnect() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with scripted(first, second) as (client, _, _, _):
        answer = client.request("list_runs")
        first.wait_heard(lambda frame: frame.get("op") == "list_runs")
        first.end()
        again = second.wait_heard(lambda frame: frame.get("op") == "list_runs")
        second.say({"type": "response", "id": again["id"], "ok": True, "result": {"runs": []}})
        assert answer.result(60) == {"runs": []}


def test_an_interrupted_launch_is_not_repeated() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with scripted(first, second) as (client, recorder, _, _):
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
    with scripted(first) as (client, _, _, _):
        for result in ({}, {"runs": "none"}, [], None):
            reply = client.request("list_runs")
            request = first.wait_heard(lambda frame: frame.get("op") == "list_runs" and frame not in answered)
            answered.append(request)
            first.say({"type": "response", "id": request["id"], "ok": True, "result": result})
            with pytest.raises(RemoteError) as caught:
                reply.result(60)
            assert caught.value.code == "bad_reply", result


def test_requests_never_hang() -> None:
    with scripted() as (client, recorder, _, clock):
        recorder.wait_link(Link.LOST)
        with pytest.raises(RemoteError) as caught:
            client.request("stop", run="x").result(60)
        assert caught.value.code == "unreachable"
        assert expire(clock, client.request("list_runs", reply_s=20)).code == "unreachable"
    with scripted(ScriptedTransport()) as (client, recorder, _, clock):
        recorder.wait_link(Link.CONNECTED)
        began = clock.monotonic()
        assert expire(clock, client.request("list_runs", reply_s=20)).code == "timeout"
        assert 20 <= clock.monotonic() - began <= 20.5
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
    """Otherwise the box is asked again after minutes."""
    refused = [ScriptedTransport(Refused("no key fits")) for _ in range(2)]
    with scripted(*refused, ScriptedTransport()) as (client, recorder, script, clock):
        assert recorder.wait_link(Link.REFUSED).detail == "no key fits"
        with pytest.raises(RemoteError, match="no key fits"):
            client.request("list_runs").result(60)
        clock.advance(299)
        assert len(script.made) == 1
        clock.advance(1)
        assert len(script.made) == 2
        clock.advance(299)
        assert len(script.made) == 2
        client.reconnect_now()
        recorder.wait_link(Link.CONNECTED)


def test_a_retry_from_the_event_of_a_refusal_counts() -> None:
    clock = TestClock()
    script = Script(ScriptedTransport(Refused("no key fits")), ScriptedTransport(), clock=clock)
    recorder = Recorder()

    def on_event(event: Any) -> None:
        recorder(event)
        if isinstance(event, LinkChanged) and event.state is Link.REFUSED:
            client.reconnect_now()

    client = BoxClient(BOX, on_event, transport_factory=script, clock=clock)
    client.start()
    recorder.wait_link(Link.CONNECTED)
    client.close()


def test_back_off_grows_until_reconnect_now() -> None:
    failing = [ScriptedTransport(Unreachable("no")) for _ in range(9)]
    with scripted(*failing, ScriptedTransport()) as (client, recorder, script, clock):
        recorder.wait_link(Link.LOST)
        clock.advance_until(lambda: len(script.made) == 9)
        assert all(
            0.8 * wait - 0.05 <= shown <= 1.2 * wait + 0.05
            for wait, shown in zip((1, 2, 4, 8, 16, 30, 30, 30, 30), waits(recorder), strict=True)
        )
        client.reconnect_now()
        clock.settle()
        assert client.link is Link.CONNECTED


def test_a_link_that_stood_is_retried_at_once() -> None:
    """The first retry, which a hole in the network may outlast, does not count as a failure."""
    first = ScriptedTransport()
    with scripted(first) as (_, recorder, script, clock):
        recorder.wait_link(Link.CONNECTED)
        clock.advance(10)
        first.end()
        clock.advance_until(lambda: len(script.made) == 4)
        assert waits(recorder)[0] == 0.1
        assert 0.8 <= waits(recorder)[1] <= 1.2
        assert 1.6 <= waits(recorder)[2] <= 2.4


def test_a_link_that_ended_at_once_has_failed() -> None:
    first = ScriptedTransport()
    with scripted(first) as (_, recorder, _, clock):
        recorder.wait_link(Link.CONNECTED)
        clock.advance(9)
        first.end()
        clock.settle()
        assert 0.8 <= waits(recorder)[0] <= 1.2


def test_a_resumed_machine_reconnects_at_once() -> None:
    with scripted(ScriptedTransport(), ScriptedTransport()) as (_, recorder, script, clock):
        recorder.wait_link(Link.CONNECTED)
        clock.suspend(9)
        clock.advance(1)
        assert len(script.made) == 1, "suspended too shortly to matter"
        clock.suspend(3600)
        clock.advance(1)
        assert recorder.wait_link(Link.LOST).detail == "this machine was suspended"
        clock.advance_until(lambda: len(script.made) == 2, most=1.3)
        recorder.wait_reconnected(0)


def test_silence_is_stale_then_lost() -> None:
    silent = ScriptedTransport(answers=False)
    with scripted(silent, ScriptedTransport()) as (client, recorder, _, clock):
        recorder.wait_link(Link.CONNECTED)
        clock.advance(4)
        assert client.link is Link.CONNECTED
        clock.advance(1)
        assert client.link is Link.STALE
        clock.advance(9)
        assert client.link is Link.STALE
        clock.advance(1)
        assert recorder.wait_link(Link.LOST).detail == "no answer from scripted for 15 s"
        recorder.wait_reconnected(0)


def test_a_box_that_answers_again_is_not_stale() -> None:
    slow = ScriptedTransport(answers=False)
    with scripted(slow) as (client, recorder, _, clock):
        recorder.wait_link(Link.CONNECTED)
        clock.advance(14)
        assert client.link is Link.STALE
        slow.say({"type": "pong", "n": 1})
        clock.settle()
        assert client.link is Link.CONNECTED
        clock.advance(4)
        assert client.link is Link.CONNECTED
        clock.advance(11)
        assert client.link is Link.LOST


def test_another_protocol_version_is_refused() -> None:
    class Old(ScriptedTransport):
        def send(self, data: bytes) -> None:
            self.say({"type": "hello", "protocol": 99})

    with scripted(Old()) as (_, recorder, _, _):
        assert "99" in recorder.wait_link(Link.REFUSED).detail


def test_garbage_from_the_box_breaks_only_the_link() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with scripted(first, second) as (_, recorder, _, _):
        recorder.wait_link(Link.CONNECTED)
        mark = recorder.mark()
        first.say(b"Segmentation fault\n")
        assert "invalid JSON" in recorder.wait_link(Link.LOST, after=mark).detail
        recorder.wait_reconnected(mark)


def test_a_gap_in_a_log_is_not_passed_on() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with scripted(first, second) as (client, recorder, _, _):
        log = client.follow("log")
        wire = first.wait_heard(lambda frame: frame.get("topic") == "log")["id"]
        first.say(encode_data(wire, 0, b"one", (3, "h")), encode_data(wire, 5, b"gap"))
        again = second.wait_heard(lambda frame: frame.get("topic") == "log")
        assert Cursor.from_json(again["params"]["cursor"]) == Cursor("log", 3, 3, "h")
        second.say(encode_data(again["id"], 3, b"two"))
        eventually(lambda: recorder.logs.get(log) == b"onetwo")


def test_outstanding_credit_survives_a_reconnect() -> None:
    first, second = ScriptedTransport(), ScriptedTransport()
    with scripted(first, second) as (client, recorder, _, _):
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
    with scripted(first) as (client, recorder, _, _):
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
    with connected(box, process=True, reconnects=True) as (client, recorder):
        number = client.follow("log")
        mark = 0
        for _ in range(2):
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

    client = BoxClient(box, on_event)
    client.start()
    assert done.wait(60 * PATIENCE)
    eventually(lambda: client.link is Link.CLOSED)


def test_topics_arrive_without_a_request(box: Box) -> None:
    with connected(box, process=True) as (_, recorder):
        recorder.wait_for(RunsReported)
        assert recorder.wait_link(Link.CONNECTED).state is Link.CONNECTED
        latency = recorder.wait(lambda e: isinstance(e, LinkChanged) and e.latency_ms is not None)
        assert isinstance(latency, LinkChanged)
        assert latency.latency_ms is not None
        assert 0 < latency.latency_ms < 15_000


def test_close_without_start_and_twice(box: Box) -> None:
    client = BoxClient(box, Recorder())
    client.close()
    recorder = Recorder()
    other = BoxClient(box, recorder)
    other.start()
    other.close()
    other.close()
    recorder.wait_link(Link.CLOSED)
