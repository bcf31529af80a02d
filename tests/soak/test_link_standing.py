"""Random faults on links that stand, under four kinds of load, and an hour of one. Part of ``make soak``.

The seed is printed; LINK_SEED repeats it. LINK_FAULTS sets the number of faults (1,000), LINK_LANES the lanes of each
kind of load, LINK_LOAD a single one, LINK_KINDS the kinds of fault, LINK_HOUR_S the length of the hour.
LINK_TRANSPORT=openssh tries the system's ssh.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from tests.remote.conftest import _own_directories
from tests.soak.endurance import Plan, endure
from tests.soak.standing_faults import KINDS
from tests.support.log_loads import LOADS
from tests.support.opening import TRANSPORT

__all__ = ["_own_directories"]
SEED = os.environ.get("LINK_SEED") or secrets.token_hex(4)
FAULTS = int(os.environ.get("LINK_FAULTS", "1000"))
LANES = int(os.environ.get("LINK_LANES", "3"))
CHOSEN = os.environ.get("LINK_KINDS", ",".join(KINDS)).split(",")
HOUR_S = float(os.environ.get("LINK_HOUR_S", "3600"))
EVERY_S = 60.0


@pytest.mark.timeout(4 * 3600)
def test_faults_on_a_standing_link(tmp_path: Path) -> None:
    loads = [os.environ["LINK_LOAD"]] if "LINK_LOAD" in os.environ else LOADS
    names = [(load, f"{SEED}-{load}-{number}") for number in range(LANES) for load in loads]
    plans = [
        Plan(load, TRANSPORT, seed, len(range(number, FAULTS, len(names))), CHOSEN)
        for number, (load, seed) in enumerate(names)
    ]
    print(f"LINK_SEED={SEED} LINK_FAULTS={FAULTS} LINK_LANES={LANES}", flush=True)
    endure(tmp_path, [plan for plan in plans if plan.faults])


@pytest.mark.timeout(2 * 3600)
def test_an_hour_of_a_fast_log(tmp_path: Path) -> None:
    print(f"LINK_SEED={SEED} LINK_HOUR_S={HOUR_S}", flush=True)
    endure(tmp_path, [Plan("fast", TRANSPORT, SEED, int(HOUR_S / EVERY_S), CHOSEN, EVERY_S, rate=1_000)])
