"""``grpo-tui boxes``: every box of boxes.yaml at a glance, each asked on a connection of its own, all at once."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from grpo_tui.fleet.glance import Glance
from grpo_tui.fleet.watch import look
from grpo_tui.history.tables import print_table
from grpo_tui.model.formatting import money, short_duration
from remote.boxes import load_boxes


def boxes(arguments: argparse.Namespace) -> int:
    """Print every box; returns 1 if one was not reached, or if GPUs of one cannot be read or used."""
    entries = load_boxes(arguments.boxes)
    with ThreadPoolExecutor(max_workers=len(entries)) as pool:
        glances = list(pool.map(look, entries))
    if arguments.json:
        print(json.dumps([asdict(each) for each in glances], indent=1))
    else:
        _print(glances)
    return int(any(each.problem or each.gpu_problem for each in glances))


def _print(glances: Sequence[Glance]) -> None:
    columns, rows = ["box", "address", "instance", "runs", "GPUs free", "$/h", "idle for"], list(map(_cells, glances))
    if not any(each.instance for each in glances):  # no box has a provider
        for line in [columns, *rows]:
            del line[2]
    print_table(columns, rows)
    for each in glances:
        if problem := each.problem or each.gpu_problem:
            print(f"{each.name}: {problem}")


def _cells(glance: Glance) -> list[str]:
    price = money(glance.price_per_hour)
    instance = glance.instance.partition(" (")[0]  # the reason is in the problem
    if glance.problem:
        return [glance.name, glance.address, instance, "not reached", "", price, ""]
    idle = short_duration(glance.idle_s)
    live = ", ".join(glance.live) or "none"
    return [glance.name, glance.address, instance, live, glance.gpus_said, price, idle]
