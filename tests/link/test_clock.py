"""The box's clock: its difference to the laptop's is measured with every pong."""

from __future__ import annotations

import time
from dataclasses import replace

from remote.client import BoxClient
from remote.events import ClockMeasured
from remote.timing import Timing
from tests.support.agent import Recorder
from tests.support.hostile_box import BOX, HostileBox, hostile

STEP_S = 5 * 3600.0


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
