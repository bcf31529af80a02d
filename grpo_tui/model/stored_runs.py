"""The runs that a destination of backups holds. No Textual."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remote.protocol.rows import UNREADABLE

SHOWN_KINDS = {"training_runs": "", "archive/completed_runs": "archived", "archive/important_checkpoints": "archived"}
"""Kinds that a user restores by hand, and what they are besides; evaluations come with their run."""
USABLE = ("complete", "marked")


@dataclass(frozen=True)
class StoredSnapshot:
    """A snapshot of a run. Unknown values are 0 or empty."""

    number: int
    state: str
    reason: str
    age_s: float
    steps: tuple[int, ...]
    bytes: float
    run_state: str


@dataclass(frozen=True)
class StoredRun:
    """A run in a destination."""

    name: str
    identity: str
    kind: str
    destination: str
    here: bool
    """Whether it is on the box."""
    same_disk: bool
    snapshots: tuple[StoredSnapshot, ...]
    """Newest first."""

    @property
    def full_name(self) -> str:
        """What names it even where a destination holds several of its name."""
        return f"{self.name}--{self.identity}"

    @property
    def usable(self) -> list[StoredSnapshot]:
        return [each for each in self.snapshots if each.state in USABLE]

    @property
    def newest(self) -> StoredSnapshot | None:
        return next(iter(self.usable), None)

    @property
    def problem(self) -> str:
        """Why it cannot be restored; "" if it can."""
        if self.usable:
            return ""
        return next((each.reason or each.state for each in self.snapshots), "") or "no complete snapshot"


def stored_runs(rows: Iterable[Mapping[str, Any]], destination: str) -> list[StoredRun]:
    """The rows of a ``list_backups`` reply: those that are not on the box first, then the newest.

    A run that was archived later is listed once: it is restored as it was.
    """
    found = [
        StoredRun(
            row["name"], row["identity"], row.get("kind", ""), destination, bool(row.get("here")),
            bool(row.get("same_disk")), tuple(map(_snapshot, row.get("snapshots") or ())),
        )
        for row in rows
        if UNREADABLE not in row and row.get("kind") in SHOWN_KINDS
    ]  # fmt: skip
    running = {run.full_name for run in found if run.kind == "training_runs"}
    found = [run for run in found if run.kind == "training_runs" or run.full_name not in running]
    return sorted(found, key=lambda run: (run.here, run.newest.age_s if run.newest else float("inf"), run.name))


def _snapshot(row: Mapping[str, Any]) -> StoredSnapshot:
    return StoredSnapshot(
        int(row.get("number", 0)), row.get("state", ""), row.get("reason", ""), row.get("age_s", 0.0),
        tuple(sorted(int(step) for step in row.get("steps") or ())), row.get("bytes", 0.0), row.get("run_state", ""),
    )  # fmt: skip
