"""The box's clock: wrong by hours, or set while connected. Every pong measures its difference to the laptop's."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from grpo_train.run_dir.clock import CLOCK
from grpo_tui.model.store import Store
from remote.client import BoxClient
from remote.events import ClientEvent, ClockMeasured, Link, LinkChanged, RunsReported
from remote.timing import Pings, SleepDetector, Timing
from tests.remote.test_jobs import ask
from tests.support.agent import Recorder, eventually
from tests.support.clock import TestClock
from tests.support.hostile_box import BOX, HostileBox, hostile
from tests.support.machine import Machine

STEP_S = 5 * 3600.0


def steps_its_clock(box: HostileBox) -> None:
    pongs = count(1)
    box.pong = lambda: {"time": time.time() + (STEP_S if next(pongs) > 10 else 0.0)}
    box.greet()
    box.stay()


def test_a_step_of_the_boxs_clock_is_measured() -> None:
    recorder = Recorder()
    timing = replace(Timing(), ping_every=0.2)
    client = BoxClient(BOX, recorder, transport_factory=hostile(steps_its_clock), timing=timing)
    client.start()
    try:
        recorder.wait(lambda event: isinstance(event, ClockMeasured) and abs(event.skew_s) < 2.0)
        recorder.wait(lambda event: isinstance(event, ClockMeasured) and abs(event.skew_s + STEP_S) < 2.0)
        assert sum(isinstance(event, ClockMeasured) for event in recorder.events) < 6  # not with every pong
    finally:
        client.close()


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


class Screen(Recorder):
    """Records events and applies them as they arrive, as the app does."""

    def __init__(self) -> None:
        super().__init__()
        self.store = Store("h200")

    def __call__(self, event: ClientEvent) -> None:
        self.store.apply(event)
        super().__call__(event)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    if os.geteuid() != 0:
        pytest.skip("needs root for namespaces")
    with Machine(tmp_path) as machine:
        yield machine


def test_ages_are_right_whatever_the_boxs_clock(machine: Machine, root: Path) -> None:
    """5 h ahead when the link opens, then set to 5 h behind, then right.

    One run logs meanwhile, and the last sign of life of the other is from before the clock was set.
    """
    screen = Screen()
    store = screen.store
    machine.set_clock("+5h")
    box = machine.box(root=str(root))
    client = BoxClient(
        box, screen, host_keys_file=machine.hosts, timing=replace(Timing(), ping_every=0.3, lost_after=60.0)
    )
    screen.client = client
    client.start()
    try:
        screen.wait_link(Link.CONNECTED, 60)
        ask(client, "launch", config_text="frugal", run_name="silent")  # it says nothing after its start
        eventually(lambda: [row.state for row in store.runs or ()] == ["running"], 60)
        (silent,) = store.runs or ()
        began = time.time() - (store.row_age(silent) or 0.0)
        ask(client, "launch", config_text="obedient", run_name="r")
        for setting, ahead_s in (("+5h", STEP_S), ("-5h", -STEP_S), ("+0", 0.0)):
            machine.set_clock(setting)
            mark = screen.mark()
            if setting != "+5h":
                screen.wait(lambda e, s=ahead_s: isinstance(e, ClockMeasured) and abs(e.skew_s + s) < 2, 30, mark)

            def new_row(ahead_s: float = ahead_s) -> bool:
                # A look may see its first line, but its state from just before.
                logged = [row for row in store.runs or () if row.name == "r" and row.state != "starting"]
                stamps = [row.logged_at for row in logged if row.logged_at]
                return bool(stamps) and abs(stamps[0] - ahead_s - time.time()) < 600

            eventually(new_row, 60)
            row, silent = sorted(store.runs or (), key=lambda row: row.name)
            assert row.logged_at is not None
            shown, true = store.row_age(row), time.time() - (row.logged_at - ahead_s)
            print(f"clock {setting}: shown {shown:.2f} s, true {true:.2f} s")
            assert shown == pytest.approx(true, abs=2.0)
            assert store.row_age(silent) == pytest.approx(time.time() - began, abs=2.0)
            assert (store.row_tone(row), row.state, silent.state) == ("live", "running", "running")
        ask(client, "stop", run="r")
        screen.wait(lambda e: isinstance(e, RunsReported) and "stopped" in [row["state"] for row in e.runs], 30)
        states = {row["state"] for e in screen.events if isinstance(e, RunsReported) for row in e.runs}
        assert states <= {"starting", "running", "stopped"}
        links = [e.state for e in screen.events if isinstance(e, LinkChanged)]
        assert set(links[links.index(Link.CONNECTED) :]) == {Link.CONNECTED}
    finally:
        client.close()
