"""Checkpoints that nothing needs, by run. No Textual."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from remote.protocol.rows import UNREADABLE


@dataclass
class SpareRun:
    """The checkpoints of a run that can go."""

    name: str
    steps: list[int] = field(default_factory=list)
    size: float = 0.0
    evaluated: dict[int, str] = field(default_factory=dict)
    """Step to its accuracies."""

    def paths(self, root: str) -> str:
        """Their directories, as a shell on the box writes them: ``/root/…/step_{200,400}``."""
        steps = ",".join(map(str, self.steps))
        folder = shlex.quote(f"{root}/training_runs/{self.name}/training_state")
        return f"{folder}/step_{steps if len(self.steps) == 1 else f'{{{steps}}}'}"

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
