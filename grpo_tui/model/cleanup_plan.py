"""The plan of a cleanup: what would be removed from where, and what proves that it is elsewhere. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from grpo_train.run_dir.display import duration
from grpo_tui.model.formatting import counted
from grpo_tui.model.spare import SpareRun
from remote.protocol.rows import UNREADABLE


@dataclass(frozen=True)
class CleanUpPlan:
    """A plan of the engine."""

    run: str
    host: str
    destination: str
    store: str
    """URL of the destination."""
    snapshot: int
    keep: int
    """Number of newest checkpoints that were asked to be kept."""
    read_back: str
    """When the backup was read back."""
    steps: tuple[int, ...]
    """Of the checkpoints that would be removed."""
    bytes: float
    kept: tuple[tuple[int, str], ...]
    """(step, reason) of those that stay."""

    @property
    def ranges(self) -> str:
        """``10–40 (4), 100``: the steps that would be removed."""
        return SpareRun(self.run, list(self.steps)).ranges()

    @property
    def count(self) -> str:
        return counted(len(self.steps), "checkpoint")


def cleanup_plan(reply: Mapping[str, Any], keep: int) -> CleanUpPlan:
    """From a ``plan_cleanup`` reply."""
    removed = [row for row in reply["removed"] if UNREADABLE not in row]
    kept = [row for row in reply["kept"] if UNREADABLE not in row]
    number, age = int(reply["read_back"]), reply["read_back_age_s"]
    read_back = "never in whole"
    if number:
        read_back = f"snapshot {number}" + (f", {duration(age)} ago" if age is not None else "")
    return CleanUpPlan(
        reply["run"], reply["host"], reply["destination"], reply["store"], int(reply["snapshot"]), keep, read_back,
        tuple(sorted(int(row.get("step", 0)) for row in removed)), sum(row.get("bytes", 0.0) for row in removed),
        tuple(sorted((int(row.get("step", 0)), row.get("reason", "")) for row in kept)),
    )  # fmt: skip
