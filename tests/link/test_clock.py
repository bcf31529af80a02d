"""The box's clock: its difference to the laptop's is measured with every pong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from remote.client import BoxClient
from remote.events import ClockMeasured
from remote.timing import Pings, Timing
from tests.support.agent import Recorder
from tests.support.hostile_box import BOX, HostileBox, hostile
from tests.support.standing import faked_clock

STEP_S = 5 * 3600.0
SET_CLOCK = """
import sys, time
from remote.timing import SleepDetector, sleep_clock
before, detector = time.time(), SleepDetector(sleep_clock, 10.0)
open(sys.argv[1], "w").write("+18000s")
print(time.time() - before > 10_000, detector.happened())
"""


def steps_its_clock(box: HostileBox) -> None:
    started = time.time()
    box.pong = lambda: {"time": time.time() + (STEP_S if time.time() > started + 2.0 else 0.0)}
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


def test_a_set_clock_is_not_a_suspend(tmp_path: Path) -> None:
    clock = tmp_path / "clock"
    clock.write_text("+0s")
    environment = {**os.environ, **faked_clock(clock)}
    done = subprocess.run([sys.executable, "-c", SET_CLOCK, clock], env=environment, capture_output=True, text=True)
    assert done.stdout.split() == ["True", "False"], done.stderr
