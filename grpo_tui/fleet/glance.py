"""What a box says about itself in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remote.protocol.rows import UNREADABLE

OTHER_MACHINE = "another machine than the last time answers under this name, with a host key that is known"
OTHER_MACHINE_HINT = (
    "its disk is a copy, or you accepted its key; what this machine remembers under the name is of the former one. "
    "To keep them apart, give it another name in boxes.yaml"
)


@dataclass(frozen=True)
class Glance:
    """One look at a box; of one that was never reached, only name, address, price and problem are known."""

    name: str
    address: str
    price_per_hour: float | None
    instance: str = ""
    """State of its instance, as its provider said last, ``? (REASON)`` where it could not be asked; "" without one."""
    problem: str = ""
    """Why it is not reached now, or why it cannot read its runs; "" if all is well."""
    live: tuple[str, ...] = ()
    """Its live runs."""
    gpus: int | None = None
    """Its GPUs; None if it did not say."""
    gpus_free: int | None = None
    """GPUs that nothing uses; None where its driver does not report enough to know."""
    gpu_problem: str = ""
    """Why its GPUs, or some of them, cannot be read or used."""
    idle_s: float | None = None
    """Seconds since a run last wrote its state; None while one is live, or without runs."""
    age_s: float | None = None
    """Seconds since the box was last heard; 0 while its link is up, None if it never was."""

    @property
    def gpus_said(self) -> str:
        """``2 of 4``, ``? of 4``, ``no GPU``, or ``?`` where they could not be read."""
        if self.gpus is None:
            return "?"
        return f"{'?' if self.gpus_free is None else self.gpus_free} of {self.gpus}" if self.gpus else "no GPU"


def gpu_counts(rows: Iterable[Mapping[str, Any]] | None, problem: str) -> dict[str, Any]:
    """The fields of a glance about GPUs, from the rows of the last sample and why they cannot be read now."""
    if rows is None or problem:
        return {"gpus": None, "gpus_free": None, "gpu_problem": problem}
    rows = list(rows)
    bad = [row for row in rows if row.get("problem") or UNREADABLE in row]
    free = [row.get("free") for row in rows if row not in bad]
    words = [f"GPU {row.get('index', '?')}: {row.get('problem') or row[UNREADABLE]}" for row in bad]
    return {"gpus": len(rows), "gpus_free": None if None in free else sum(free), "gpu_problem": "; ".join(words)}
