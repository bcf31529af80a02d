"""A link that is cut, damaged or stalled while it opens connects by itself and says nothing false on the way.

Seeded samples: ``tests/soak/test_link_opening.py`` tries every place of an opening, ``test_link_standing.py`` 1,000
faults of a link that stands, which here are those of ``tests/remote/test_ssh.py``. LINK_SEED draws other places.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from grpo_train.run_dir.clock import SystemClock
from remote.base import Unreachable
from remote.transports.ssh_config import read_configuration
from tests.support.opening import Lane, mask, opening
from tests.support.proxy import Fault

KINDS = ("reset", "fin", "flip")


@pytest.fixture(params=["paramiko", "openssh"])
def lane(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Lane]:
    with opening(tmp_path, transport=request.param) as lane:
        yield lane
        lane.assert_truthful()
        lane.assert_no_agent_left()


def test_cuts_and_damage_while_opening(lane: Lane, chance: random.Random) -> None:
    """Each kind in the plain text of the key exchange, and behind it in the other direction."""
    places = lane.places(upload=False)
    faults = []
    for kind in KINDS:
        back = chance.random() < 0.5
        faults.append(Fault(kind, chance.randrange(places[back].exchange), back, mask(chance)))
        behind = chance.randrange(places[not back].exchange, places[not back].opening)
        faults.append(Fault(kind, behind, not back, mask(chance)))
    assert lane.survive(faults) >= len(faults) - 2  # the last bytes of an opening vary
    (descriptors, threads), (last_descriptors, last_threads) = lane.leaks[2], lane.leaks[-1]
    assert last_descriptors <= descriptors + 1
    assert last_threads <= threads + 1


def test_cuts_and_damage_during_the_upload(lane: Lane, chance: random.Random) -> None:
    places = lane.places(upload=True)
    faults = []
    for kind in KINDS:
        back = chance.random() < 0.5
        offset = chance.randrange(places[back].exchange, places[back].opening)
        faults.append(Fault(kind, offset, back, mask(chance)))
    assert lane.survive(faults, upload=True) >= len(faults) - 1


def test_a_stall_while_opening(tmp_path: Path, chance: random.Random) -> None:
    """Nothing passes any more in one direction, in the key exchange or behind it."""
    with opening(tmp_path, transport="openssh") as lane:
        places = lane.places(upload=False)
        for back in (False, True):
            lane.survive_stall(Fault("stall", chance.randrange(places[back].opening), back, seconds=600.0))
        lane.assert_truthful()
        lane.assert_no_agent_left()


class Suspended(SystemClock):
    """Whoever waits is suspended for an hour meanwhile."""

    asleep_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.asleep_s

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        self.asleep_s += 3600.0
        return super().wait(event, seconds)


def test_a_suspend_is_no_slow_configuration() -> None:
    command = ["sh", "-c", "sleep 0.3; echo user me"]
    assert read_configuration(command, "h200", lambda: False, Suspended()) == "user me\n"


def test_a_killed_ssh_is_no_refusal() -> None:
    with pytest.raises(Unreachable):
        read_configuration(["sh", "-c", "kill -9 $$"], "h200", lambda: False)
