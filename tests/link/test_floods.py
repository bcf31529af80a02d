"""A box that floods costs the client little memory and time, is shown as what it is, and never delays quitting."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remote.boxes import Box
from remote.client import BoxClient
from remote.events import BoxGreeted, HostKeyAsked, Link, LinkChanged
from remote.protocol import (
    INITIAL_CREDIT,
    MAX_DATA,
    MAX_FRAME,
    Decoder,
    Flood,
    ProtocolError,
    encode_data,
    encode_parts,
)
from remote.protocol.frames import MAX_JOINED, MAX_VALUES, PART_LENGTH
from remote.transports.transport import Allowance, Pings, Timing
from tests.support import flooded_client
from tests.support.agent import connected, eventually
from tests.support.clock import TestClock
from tests.support.floods import FLOODS, in_parts, long_updates, many_values, steady_updates, updates
from tests.support.hostile_box import BOX, HostileBox, Script, app_command, hostile_here, line
from tests.support.proxy import ChaosProxy
from tests.support.terminal import Terminal

SECONDS = 6.0
MEASURED = (long_updates, many_values, steady_updates)
"""Long frames, those that take the most memory, and as many as are put up with."""


@pytest.mark.parametrize("flood", FLOODS, ids=lambda flood: flood.__name__)
def test_a_flood_is_called_what_it_is(flood: Script) -> None:
    clock = TestClock()
    with connected(BOX, transport_factory=hostile_here(flood, clock=clock), clock=clock) as (client, recorder):
        recorder.returns_credit = False
        client.follow("log")
        recorder.wait(lambda event: isinstance(event, LinkChanged) and FLOODS[flood] in event.detail, 30)


def test_floods_are_bounded() -> None:
    """Some floods, side by side; the soak test gives each a core and a minute."""

    def flood(name: str) -> flooded_client.Outcome:
        return flooded_client.outcome(flooded_client.start(name, SECONDS), 60 * SECONDS)

    with ThreadPoolExecutor() as pool:
        outcomes = pool.map(flood, [script.__name__ for script in MEASURED])
        for script, outcome in zip(MEASURED, outcomes, strict=True):
            print(script.__name__, outcome)
            outcome.assert_bounded(FLOODS[script], close_s=5.0)  # a loaded machine is slow to end a process


def test_the_app_survives_a_flood(tmp_path: Path) -> None:
    app = app_command(tmp_path, updates)
    environment = {"HOME": str(tmp_path), "LC_ALL": "C.UTF-8", "TERM": "xterm-256color"}
    with Terminal([str(app), "--root", str(tmp_path)], environment) as screen:
        screen.wait_for("r1", "link lost", "retrying in", "floods the link", timeout=30)
        screen.press("q")
        screen.wait_for("Pane is dead (status 0", timeout=10)


def to_the_last_byte(box: HostileBox, more: int) -> None:
    """Use up the credit of a log exactly, then send ``more`` bytes."""
    box.greet()
    log = box.log()
    for offset in range(0, INITIAL_CREDIT, MAX_DATA):
        box.say(encode_data(log, offset, b"x" * MAX_DATA))
    if more:
        box.say(encode_data(log, INITIAL_CREDIT, b"x" * more))
    box.stay()


@pytest.mark.parametrize("more", [0, 1])
def test_a_byte_beyond_the_credit_is_a_flood(more: int) -> None:
    clock = TestClock()
    options = {"transport_factory": hostile_here(to_the_last_byte, more, clock=clock), "clock": clock}
    with connected(BOX, **options) as (client, recorder):
        recorder.returns_credit = False
        log = client.follow("log")
        eventually(lambda: recorder.logs.get(log) == b"x" * INITIAL_CREDIT)
        if more:
            assert "1 bytes more than the credit" in recorder.wait_link(Link.LOST).detail
        else:
            mark = recorder.mark()
            recorder.wait(lambda event: isinstance(event, LinkChanged) and event.latency_ms is not None, after=mark)
            assert client.link is Link.CONNECTED


def test_a_flood_waits_the_longest_back_off() -> None:
    clock = TestClock()
    with connected(BOX, transport_factory=hostile_here(updates, clock=clock), clock=clock) as (client, recorder):
        lost = recorder.wait_link(Link.LOST)
        assert lost.retry_in_s is not None
        assert lost.retry_in_s >= 0.8 * Timing().backoff_most
        mark = recorder.mark()
        client.reconnect_now()
        recorder.wait_link(Link.CONNECTED, after=mark)


def test_parts_that_never_end_are_refused() -> None:
    decoder = Decoder()
    for count in range(MAX_JOINED // PART_LENGTH):
        assert decoder.feed(line({"type": "part", "text": "x" * PART_LENGTH, "more": True})) == [], count
    with pytest.raises(Flood):
        decoder.feed(line({"type": "part", "text": "x" * PART_LENGTH, "more": True}))
    for text in ("", "x", "é" * (PART_LENGTH // 4), None, 3, ["x"]):
        with pytest.raises(ProtocolError, match="malformed 'part'"):
            Decoder().feed(line({"type": "part", "text": text, "more": True}))
    with pytest.raises(ProtocolError):
        Decoder().feed(line({"type": "part", "text": ""}))


def test_a_frame_has_a_limit_of_values() -> None:
    def with_values(count: int) -> bytes:
        return in_parts(json.dumps({"type": "x", "value": [[]] * count}))

    (frame,) = Decoder().feed(with_values(MAX_VALUES // 2 - 10))
    assert len(frame["value"]) == MAX_VALUES // 2 - 10
    with pytest.raises(Flood):
        Decoder().feed(with_values(MAX_VALUES // 2))


def test_the_largest_frame_passes() -> None:
    frame = {"type": "update", "id": 1, "value": {"text": "é" * (MAX_JOINED // 6 - 20)}}
    assert Decoder().feed(b"".join(encode_parts(frame))) == [frame]


def test_a_line_may_arrive_byte_by_byte() -> None:
    decoder, frame = Decoder(), {"type": "x", "text": "y" * (MAX_FRAME - 100)}
    found = [frame for byte in line(frame) for frame in decoder.feed(bytes([byte]))]
    assert found == [frame]


numbers = st.integers() | st.floats() | st.just(10**400) | st.booleans() | st.text(max_size=3) | st.none()
anything = numbers | st.lists(numbers, max_size=3) | st.dictionaries(st.text(max_size=3), numbers, max_size=3)
ids = st.integers(min_value=0, max_value=8) | anything
fields = {
    **dict.fromkeys(("id", "n"), ids),
    **dict.fromkeys(("offset", "ok", "result", "value", "error", "text", "base64", "head", "tail", "file"), anything),
}
kinds = st.sampled_from(["response", "update", "data", "rotated", "closed", "pong", "ping", "hello", "x"])


@given(st.lists(st.fixed_dictionaries({"type": kinds}, optional=fields), max_size=6))
def test_no_frame_raises_anything_but_protocol_error(frames: list[dict[str, Any]]) -> None:
    failures: list[Exception] = []

    def on_event(event: Any) -> None:
        repr(event)

    client = BoxClient(BOX, on_event)
    client._go_up()
    client.follow("a")
    client.follow("b")
    client.request("list_runs")
    pings = Pings()
    pings.sent(0.0)
    for frame in frames:
        try:
            client._take([(frame, 100)], Allowance("flood"), pings)
        except ProtocolError as error:
            failures.append(error)
    for follow in client._follows.values():
        encode_parts(follow.subscribe_frame())  # what the box sent is sent back after a reconnect


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def test_reconnects_leave_nothing_behind(box: Box, root: Path) -> None:
    with connected(box, process=True, reconnects=True) as (_, recorder):
        counts = []
        mark = 0
        for _ in range(7):
            greeted = recorder.wait_for(BoxGreeted, after=mark)
            mark = recorder.mark()
            counts.append((descriptors(), threads()))
            os.kill(int(greeted.host["pid"]), signal.SIGKILL)
            recorder.wait_reconnected(mark)
        eventually(lambda: descriptors() <= counts[3][0] and threads() <= counts[3][1], what=f"{counts}")


def test_ssh_reconnects_leave_nothing_behind(ssh_box: Box, proxy: ChaosProxy, tmp_path: Path) -> None:
    with connected(ssh_box, host_keys_file=tmp_path / "known_hosts", reconnects=True) as (client, recorder):
        recorder.wait_for(HostKeyAsked)
        client.answer_host_key(True)
        counts = []
        mark = 0
        for _ in range(7):
            recorder.wait_for(BoxGreeted, after=mark)
            mark = recorder.mark()
            counts.append((descriptors(), threads()))
            proxy.reset()
            recorder.wait_link(Link.LOST, after=mark)
        recorder.wait_for(BoxGreeted, after=mark)
        eventually(lambda: descriptors() <= counts[3][0] and threads() <= counts[3][1], what=f"{counts}")
