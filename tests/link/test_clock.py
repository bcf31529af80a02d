"""The box's clock: wrong by hours, or set while connected. Every pong measures its difference to the laptop's."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from grpo_train.run_dir import StatusWriter, create_run, open_run, utc_from
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import append_jsonl
from grpo_tui.box.store import Store
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import ClientEvent, ClockMeasured, Link, LinkChanged, RunsReported
from remote.transports.transport import Pings, SleepDetector
from tests.support.agent import Recorder, ThreadTransport
from tests.support.clock import TestClock

STEP_S = 5 * 3600.0


class Screen(Recorder):
    """Records events and applies them as they arrive, as the app does."""

    def __init__(self, clock: TestClock) -> None:
        super().__init__()
        self.store = Store("h200", now=clock.time)

    def __call__(self, event: ClientEvent) -> None:
        self.store.apply(event)
        super().__call__(event)

    def skews(self) -> list[float]:
        """The differences of the clocks that were measured, in seconds."""
        return [event.skew_s for event in self.events if isinstance(event, ClockMeasured)]


class BoxClock:
    """A box's clock, which is ahead of the laptop's."""

    def __init__(self, laptop: TestClock) -> None:
        self._laptop = laptop
        self.ahead_s = 0.0

    def time(self) -> float:
        return self._laptop.time() + self.ahead_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._laptop, name)


@contextmanager
def linked(root: Path, clock: TestClock, theirs: BoxClock) -> Iterator[Screen]:
    """What a laptop shows of a box with another clock."""
    screen, box = Screen(clock), Box("h200", kind="local", root=str(root))
    transports: list[ThreadTransport] = []

    def connect(box: Box, ask: object) -> ThreadTransport:
        transports.append(ThreadTransport(clock, cast(Clock, theirs)))
        return transports[-1]

    screen.client = BoxClient(box, screen, transport_factory=connect, clock=clock)
    screen.client.start()
    try:
        screen.wait_link(Link.CONNECTED)
        screen.wait_for(RunsReported)
        yield screen
    finally:
        screen.client.close()
        for transport in transports:
            transport.join()


def test_a_step_of_the_boxs_clock_is_measured(root: Path) -> None:
    clock = TestClock()
    theirs = BoxClock(clock)
    with linked(root, clock, theirs) as screen:
        clock.advance(30)
        assert screen.skews() == [0.0]  # not with every pong
        theirs.ahead_s = STEP_S
        clock.advance(30)
        assert screen.skews() == [0.0, -STEP_S]


def pong(pings: Pings, sent: float, answered: float, received: float, skew_s: float = 0.0) -> None:
    """A pong of a box whose clock is ``skew_s`` behind; the times are this machine's."""
    pings.answered(pings.sent(sent), received, answered - skew_s, received)


def test_a_late_pong_does_not_set_the_clock() -> None:
    pings = Pings()
    pong(pings, 0.0, 0.5, 21.0)
    assert pings.skew_s is None
    pong(pings, 22.0, 22.01, 22.02)
    assert abs(pings.skew_s or 0) < 0.1
    pong(pings, 23.0, 23.5, 44.0)
    assert abs(pings.skew_s or 0) < 0.1
    pong(pings, 45.0, 45.5, 66.0, STEP_S)
    assert abs((pings.skew_s or 0) - STEP_S) < 12.0
    pong(pings, 67.0, 67.01, 67.02, STEP_S)
    assert abs((pings.skew_s or 0) - STEP_S) < 0.1


def test_a_late_pong_counts_before_it_arrives() -> None:
    pings = Pings()
    pong(pings, 0.0, 0.01, 0.02)
    assert pings.latency_at(1.0) == pings.latency_ms
    pings.sent(1.0)
    assert pings.latency_at(31.0) == 30_000


def test_a_set_clock_is_not_a_suspend() -> None:
    clock = TestClock()
    detector = SleepDetector(clock, 10.0)
    clock.set(STEP_S)
    assert not detector.happened()
    clock.set(-2 * STEP_S)
    assert not detector.happened()
    clock.suspend(STEP_S)
    assert detector.happened()
    assert not detector.happened()
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= CLOCK.boottime() <= time.clock_gettime(time.CLOCK_BOOTTIME)


def test_ages_are_right_whatever_the_boxs_clock(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """5 h ahead when the link opens, then set to 5 h behind, then right.

    One run logs meanwhile, and the last sign of life of the other is from before the clock was set.
    """
    clock = TestClock()
    monkeypatch.setattr("grpo_tui.box.store.time", clock)
    theirs = BoxClock(clock)
    theirs.ahead_s = STEP_S
    writers = {name: StatusWriter(create_run(root, {}, name).path) for name in ("r", "silent")}

    def log(name: str) -> None:
        logs = open_run(root, name).logs
        append_jsonl(logs / "train_log.jsonl", {"step": 1, "reward": 0.5, "time": utc_from(theirs.time())})

    for name, writer in writers.items():
        writer.update(state="running", total_steps=9)
        log(name)
    began = clock.time()
    with linked(root, clock, theirs) as screen:
        store = screen.store
        for ahead_s in (STEP_S, -STEP_S, 0.0):
            theirs.ahead_s = ahead_s
            clock.advance(30)
            assert screen.skews()[-1] == -ahead_s
            log("r")
            clock.advance(7)
            row, silent = sorted(store.runs or (), key=lambda row: row.name)
            assert row.logged_at == pytest.approx(theirs.time() - 7, abs=1.0)
            assert store.row_age(row) == pytest.approx(7, abs=1.0)
            assert store.row_age(silent) == pytest.approx(clock.time() - began, abs=1.0)
            assert (store.row_tone(row), row.state, silent.state) == ("live", "running", "running")
        writers["r"].update(state="stopped")
        clock.advance(3)
        assert {row.name: row.state for row in store.runs or ()} == {"r": "stopped", "silent": "running"}
        links = [e.state for e in screen.events if isinstance(e, LinkChanged)]
        assert set(links[links.index(Link.CONNECTED) :]) == {Link.CONNECTED}
    for writer in writers.values():
        writer.close()
