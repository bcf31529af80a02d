"""A link that is cut, damaged or stalled connects by itself, loses no byte and says nothing false on the way.

Seeded samples: ``tests/soak/test_link_opening.py`` tries every place of an opening, ``test_link_standing.py`` 1,000
faults of a link that stands. LINK_SEED repeats a sample.
"""

from __future__ import annotations

import dataclasses
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from remote.transports import Unreachable
from remote.transports.ssh_config import read_configuration
from tests.support.agent import QUICK
from tests.support.endurance import Plan, endure
from tests.support.log_loads import LOADS
from tests.support.opening import IMPATIENT, Lane, mask, opening, side_by_side
from tests.support.patience import PATIENCE
from tests.support.proxy import Fault
from tests.support.standing_faults import KINDS

STANDING = dataclasses.replace(QUICK, stale_after=2.0, lost_after=5.0)
SLOW_KINDS = (
    "reset_of_the_laptops_end",
    "reset_of_the_boxs_end",
    "flipped_towards_the_box",
    "flipped_towards_the_laptop",
)
"""An end that is forgotten, or waits for the rest of a damaged packet, waits until the silence has lasted."""
STALL = dataclasses.replace(IMPATIENT, step=1.0)


@pytest.fixture(params=["paramiko", "openssh"])
def lane(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lane]:
    with opening(tmp_path, transport=request.param) as lane:
        yield lane
        lane.assert_truthful()
        lane.assert_no_agent_left()


def test_cuts_and_damage_while_opening(lane: Lane, chance: random.Random) -> None:
    places = lane.places(upload=False)
    faults = []
    for kind in ("reset", "fin", "flip"):
        for back in (False, True):
            offsets = [
                chance.randrange(places[back].exchange),
                chance.randrange(places[back].exchange, places[back].opening),
            ]
            faults += [Fault(kind, offset, back, mask(chance)) for offset in offsets]
    chance.shuffle(faults)
    assert lane.survive(faults) >= len(faults) - 3  # the last bytes of an opening vary
    (descriptors, threads), (last_descriptors, last_threads) = lane.leaks[9], lane.leaks[-1]
    assert last_descriptors <= descriptors + 2
    assert last_threads <= threads + 2


def test_cuts_and_damage_during_the_upload(lane: Lane, chance: random.Random) -> None:
    places = lane.places(upload=True)
    faults = []
    for kind in ("reset", "fin", "flip"):
        for back in (False, True):
            offset = chance.randrange(places[back].exchange, places[back].opening)
            faults.append(Fault(kind, offset, back, mask(chance)))
    assert lane.survive(faults, upload=True) >= len(faults) - 3


def test_stalls_while_opening(tmp_path: Path, chance: random.Random) -> None:
    with ExitStack() as stack:
        lanes = [stack.enter_context(opening(tmp_path / str(i), STALL)) for i in range(4)]
        places = lanes[0].places(upload=False)
        shares = []
        for lane in lanes:
            lane.places(upload=False)
            offsets = [(back, chance.randrange(places[back].opening)) for back in (False, True)]
            shares.append([Fault("stall", offset, back, seconds=1.5) for back, offset in offsets])
        side_by_side(lanes, shares)
        for lane in lanes:
            lane.assert_truthful()
            lane.assert_no_agent_left()


def test_faults_on_a_standing_link(tmp_path: Path, chance: random.Random) -> None:
    seed = str(chance.random())
    kinds = [kind for kind in KINDS if kind not in SLOW_KINDS]
    fast = Plan("fast", "paramiko", seed, 3, kinds, timing=STANDING, pace=0.03, rate=1_000)
    other = dataclasses.replace(fast, load=chance.choice(LOADS), transport="openssh", seed=f"{seed}-2", rate=0)
    endure(tmp_path, [fast, other])


READS_CONFIGURATION = """
from remote.transports import ssh_config
ssh_config.RESOLVE_S = 4.0
print("reading", flush=True)
print(ssh_config.read_configuration(["sh", "-c", "sleep 0.3; echo user me"], "h200", lambda: False))
"""


def test_a_suspend_is_no_slow_configuration() -> None:
    command = [sys.executable, "-c", READS_CONFIGURATION]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as laptop:
        assert laptop.stdout is not None
        laptop.stdout.readline()
        time.sleep(0.1)
        laptop.send_signal(signal.SIGSTOP)
        time.sleep(4.5)
        laptop.send_signal(signal.SIGCONT)
        output, errors = laptop.communicate(timeout=PATIENCE * 20)
    assert output == "user me\n\n", errors


def test_a_killed_ssh_is_no_refusal() -> None:
    with pytest.raises(Unreachable):
        read_configuration(["sh", "-c", "kill -9 $$"], "h200", lambda: False)
