"""Checkpoints that nothing needs, by run, and the command that removes them. No Textual."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remote.protocol.rows import UNREADABLE

MOST_NAMED = 40
"""Steps that a command names; without any it removes all that nothing needs."""


@dataclass
class SpareRun:
    """The checkpoints of a run that can go."""

    name: str
    steps: list[int] = field(default_factory=list)
    size: float = 0.0
    evaluated: dict[int, str] = field(default_factory=dict)
    """Step to its accuracies."""

    def command(self, root: str) -> str:
        """The shell command that removes exactly these; it checks again that nothing needs them."""
        words = ["grpo-train", "prune", "--training-run", self.name]
        if len(self.steps) <= MOST_NAMED:
            words += ["--steps", ",".join(map(str, self.steps))]
        return shlex.join([*words, *(["--root", root] if root else []), "--yes"])

    def ranges(self) -> str:
        """``200–1,400 (7), 1,800``: the steps, those in even distances together."""
        parts: list[str] = []
        at = 0
        while at < len(self.steps):
            end = at
            while end + 1 < len(self.steps) and (
                self.steps[end + 1] - self.steps[end] == self.steps[at + 1] - self.steps[at]
            ):
                end += 1
            if end - at >= 2:
                parts.append(f"{self.steps[at]:,}–{self.steps[end]:,} ({end - at + 1})")
                at = end + 1
            else:
                parts.append(f"{self.steps[at]:,}")
                at += 1
        return ", ".join(parts)


def spare_runs(rows: Iterable[Mapping[str, Any]]) -> list[SpareRun]:
    """The rows of a ``spare_checkpoints`` reply by run, the run that frees the most first."""
    found: dict[str, SpareRun] = {}
    for row in rows:
        if UNREADABLE in row or row.get("step") is None:
            continue
        run = found.setdefault(row["run"], SpareRun(row["run"]))
        step = int(row["step"])
        run.steps.append(step)
        run.size += row.get("bytes", 0.0)
        if row.get("evaluated"):
            run.evaluated[step] = str(row["evaluated"])
    for run in found.values():
        run.steps.sort()
    return sorted(found.values(), key=lambda run: (-run.size, run.name))
