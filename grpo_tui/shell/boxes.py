"""``grpo-tui boxes``: every box of boxes.yaml at a glance, each asked on a connection of its own, all at once."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import parse_time
from grpo_tui.history.tables import print_table
from grpo_tui.model.formatting import money, short_duration
from grpo_tui.shell.connection import Connection
from remote.boxes import Box, load_boxes
from remote.events import GpuSampled

LINK_S = 15.0
"""How long a box may take to connect, to answer, and to sample its GPUs, each."""


@dataclass(frozen=True)
class Glance:
    """What a box says about itself; only ``name``, ``address`` and ``price_per_hour`` of one that was not reached."""

    name: str
    address: str
    price_per_hour: float | None
    problem: str = ""
    """Its name and why it was not reached; "" if it was."""
    live: tuple[str, ...] = ()
    """Its live runs."""
    gpus: int | None = None
    """Its GPUs; None if it did not say."""
    gpus_free: int | None = None
    """GPUs without a process."""
    idle_s: float | None = None
    """Seconds since a run last wrote its state, by the clocks of both; None while one is live, or without runs."""


def boxes(arguments: argparse.Namespace) -> int:
    """Print every box; returns 1 if one was not reached."""
    entries = load_boxes(arguments.boxes)
    with ThreadPoolExecutor(max_workers=len(entries)) as pool:
        glances = list(pool.map(look, entries))
    if arguments.json:
        print(json.dumps([asdict(each) for each in glances], indent=1))
    else:
        _print(glances)
    return int(any(each.problem for each in glances))


def look(box: Box) -> Glance:
    """Ask a box. Never raises for a box that is not reached, and asks no questions: several may wait at once."""
    glance = Glance(box.name, box.address(), box.price_at(time.time()))
    try:
        with Connection(box, readonly=True, connect_s=LINK_S, has_person=False) as connection:
            rows = connection.request("list_runs", LINK_S)["runs"]
            sampled = connection.event(GpuSampled, LINK_S)
    except UserError as error:
        return replace(glance, problem=str(error))
    live = tuple(str(row["run"]) for row in rows if row.get("state") in LIVE_STATES)
    wrote = max((_seconds(row.get("updated_at")) for row in rows), default=0.0)
    gpus = None if sampled is None else sampled.gpus
    return replace(
        glance,
        live=live,
        gpus=None if gpus is None else len(gpus),
        gpus_free=None if gpus is None else sum(not row.get("processes") for row in gpus),
        idle_s=max(0.0, time.time() - wrote) if wrote and not live else None,
    )


def _seconds(text: Any) -> float:
    """A time of a box, in seconds since the epoch; 0 if it is none."""
    try:
        return parse_time(str(text))
    except ValueError:
        return 0.0


def _print(glances: Sequence[Glance]) -> None:
    print_table(("box", "address", "runs", "GPUs free", "$/h", "idle for"), [_cells(each) for each in glances])
    for each in glances:
        if each.problem:
            print(each.problem)


def _cells(glance: Glance) -> list[str]:
    price = money(glance.price_per_hour)
    if glance.problem:
        return [glance.name, glance.address, "not reached", "", price, ""]
    gpus = "?" if glance.gpus is None else f"{glance.gpus_free} of {glance.gpus}" if glance.gpus else "no GPU"
    idle = short_duration(glance.idle_s)
    return [glance.name, glance.address, ", ".join(glance.live) or "none", gpus, price, idle]
