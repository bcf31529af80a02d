"""``grpo-tui boxes`` and ``grpo-tui instances``: every box at a glance, and what the providers rent out."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.box.fleet import Glance, look
from grpo_tui.box.formatting import money, print_table, short_duration
from remote.boxes import Box, default_path, load_boxes
from remote.providers import instance_name
from remote.providers import instances as list_instances


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


def instances(arguments: argparse.Namespace) -> int:
    """Print the instances of each account, by name. Raises UserError: no provider, or one that does not answer."""
    boxes = [box for box in load_boxes(arguments.boxes) if box.provider is not None]
    if not boxes:
        file = arguments.boxes or default_path()
        raise UserError(f"no box in {file} has a 'provider'; config/boxes.example.yaml has one", code="bad_config")
    rows: dict[str, dict[str, Any]] = {}
    for box in boxes:
        assert box.provider is not None
        for each in list_instances(box.provider):
            rows[each.id] = {**asdict(each), "provider": box.provider.kind, "box": _box_of(boxes, each.name)}
    listed = sorted(rows.values(), key=lambda row: (row["name"], row["id"]))
    if arguments.json:
        print(json.dumps(listed, indent=1))
    elif not listed:
        print("no instances")
    else:
        columns = ("name", "type", "region", "state", "address")
        lines = [[*(row[key] for key in columns), money(row["price_per_hour"]), row["box"]] for row in listed]
        print_table(("instance", *columns[1:], "$/h", "box"), lines)
    return 0


def _box_of(boxes: list[Box], name: str) -> str:
    """The box in boxes.yaml that an instance is, or ""."""
    return next((box.name for box in boxes if instance_name(box) == name), "")
