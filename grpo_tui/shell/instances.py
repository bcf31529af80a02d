"""``grpo-tui instances``: what the providers of boxes.yaml rent out to this account."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.history.tables import print_table
from grpo_tui.model.formatting import money
from remote.boxes import Box, default_path, load_boxes
from remote.providers import instance_name
from remote.providers import instances as list_instances


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
