"""A link is cut, damaged and stalled at every place of its opening. Part of ``make soak``.

The seed is printed; LINK_SEED repeats it. LINK_STRIDE=7 tries every seventh place, for a shorter run.
LINK_TRANSPORT=openssh tries the system's ssh.
"""

from __future__ import annotations

import os
import random
import secrets
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from remote.events import Link
from remote.transports.transport import Timing
from tests.link.conftest import _own_directories
from tests.support.opening import TRANSPORT, Places, mask, opening, side_by_side
from tests.support.proxy import Fault

__all__ = ["_own_directories"]
STRIDE = int(os.environ.get("LINK_STRIDE", "1"))
LANES = 4
REAL = Timing(backoff_first=0.01, backoff_most=0.05, settled_after=60.0)
IMPATIENT = Timing(backoff_first=0.01, backoff_most=0.05, settled_after=60.0, step=2.0)


@pytest.fixture(scope="module")
def chance() -> random.Random:
    """Dice whose seed is printed; LINK_SEED repeats it."""
    seed = os.environ.get("LINK_SEED") or secrets.token_hex(4)
    print(f"LINK_SEED={seed}")
    return random.Random(seed)


def tried(
    folder: Path,
    faults_of: Callable[[dict[bool, Places]], Sequence[Fault]],
    *,
    lanes: int = LANES,
    upload: bool = False,
    in_a_row: int = 8,
) -> Counter[str]:
    """Try the faults on several lanes; returns how many fired of each kind."""
    with ExitStack() as stack:
        road = [
            stack.enter_context(opening(folder / str(i), IMPATIENT if in_a_row > 1 else REAL, TRANSPORT))
            for i in range(lanes)
        ]
        places = next(lane.places(upload=upload) for lane in road)
        faults = list(faults_of(places))
        shares = [faults[i::lanes] for i in range(lanes)]
        side_by_side(road, shares, upload=upload, in_a_row=in_a_row)
        counts = Counter(fault.kind for lane in road for fault in lane.proxy.fired)
        connected = sum(
            event.state is Link.CONNECTED and event.latency_ms is None for lane in road for event in lane.events
        )
        print(f"places {places}; planned {len(faults)}, fired {dict(counts)}, connected {connected} times")
        leaks = [leak for lane in road for leak in lane.leaks]
        print(f"descriptors and threads (all lanes): {leaks[min(10, len(leaks) - 1)]} early, {leaks[-1]} at the end")
        for lane in road:
            lane.assert_truthful()
        for lane in road:
            lane.assert_no_agent_left()
        return counts


@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("kind", ["reset", "fin", "flip"])
def test_every_byte_of_the_key_exchange(tmp_path: Path, chance: random.Random, kind: str) -> None:
    def faults(places: dict[bool, Places]) -> list[Fault]:
        found = []
        for back in (False, True):
            offsets = [*range(0, places[back].exchange, STRIDE)]
            offsets += range(places[back].exchange, places[back].opening, 64 * STRIDE)
            found += [Fault(kind, offset, back, mask(chance)) for offset in offsets]
        chance.shuffle(found)
        return found

    assert tried(tmp_path, faults)[kind]


@pytest.mark.timeout(10_800)
@pytest.mark.parametrize("kind", ["reset", "fin", "flip"])
def test_the_upload(tmp_path: Path, chance: random.Random, kind: str) -> None:
    def faults(places: dict[bool, Places]) -> list[Fault]:
        return [
            Fault(kind, chance.randrange(places[back].exchange, places[back].opening), back, mask(chance))
            for back in (False, True)
            for _ in range(200 // STRIDE)
        ]

    assert tried(tmp_path, faults, upload=True, in_a_row=2)[kind]


@pytest.mark.timeout(3600)
def test_stalls_of_20_seconds(tmp_path: Path, chance: random.Random) -> None:
    def faults(places: dict[bool, Places]) -> list[Fault]:
        return [
            Fault("stall", chance.randrange(places[back].opening), back, seconds=20.0)
            for back in (False, True)
            for _ in range(20)
        ]

    assert tried(tmp_path, faults, lanes=40, in_a_row=1)["stall"] >= 38
