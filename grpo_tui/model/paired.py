"""Evaluations of the compared runs in pairs: which steps, what the box said, when to ask. No Textual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_tui.model.compare import Compared
from grpo_tui.model.formatting import one_line
from remote.protocol.rows import UNREADABLE

MOST_STEPS = 16
"""Steps that are compared in pairs, the newest ones."""


@dataclass(frozen=True)
class Pair:
    """A run's evaluated step against the same step of the pinned run, on the problems that both have."""

    difference: float
    low: float
    high: float
    problems: int

    @property
    def spread(self) -> float:
        """Half of the 95 % interval."""
        return (self.high - self.low) / 2

    @property
    def is_clear(self) -> bool:
        """Whether the interval does not contain zero."""
        return self.low > 0 or self.high < 0


class PairedResults:
    """The comparisons with the pinned run. The box computes them: completions do not travel."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str, int], Pair] = {}
        """By dataset, run and step."""
        self.problems: list[str] = []
        """Why a step or all of them are not compared."""
        self.is_waiting = False
        self._of: object = None

    def request(self, pinned: Compared | None, runs: Sequence[Compared]) -> dict[str, Any] | None:
        """The parameters of the request to send now, which is then in flight; None if there is none."""
        if self.is_waiting or (found := _common(pinned, runs)) is None:
            return None
        key, params = found
        if key == self._of:
            return None
        self._of = key
        self.pairs, self.problems = {}, []
        if not params["steps"]:
            return None
        self.is_waiting = True
        return params

    def wanted(self, pinned: Compared | None, runs: Sequence[Compared]) -> dict[str, Any] | None:
        """The parameters of the comparison of these runs, if nothing is known of it; None if there is none."""
        found = _common(pinned, runs) if not self.pairs and not self.is_waiting else None
        return found[1] if found is not None and found[1]["steps"] else None

    def recall(self, reply: Mapping[str, Any]) -> None:
        """Show the comparison that the laptop kept, until the box answers."""
        if not self.pairs and not self.is_waiting:
            self._take(reply)

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight."""
        self.is_waiting = False
        self._take(reply)

    def _take(self, reply: Mapping[str, Any]) -> None:
        for row in reply["comparisons"]:
            if UNREADABLE in row:
                self.problems.append(f"{row['name']}: {row[UNREADABLE]}")
            else:
                key = (row["dataset"], row["run"], int(row["step"]))
                self.pairs[key] = Pair(row["difference"], row["low"], row["high"], int(row["n"]))
        self.problems += [one_line(problem) for problem in reply["problems"]]

    def fail(self, message: str) -> None:
        """The box did not answer the request in flight."""
        self.is_waiting, self.problems = False, [one_line(message)]


def _common(pinned: Compared | None, runs: Sequence[Compared]) -> tuple[object, dict[str, Any]] | None:
    """The results of the steps that are evaluated for the pinned run and another one, and the parameters of the request
    to compare them; None while a run's evaluations are not known."""
    others = [run for run in runs if run is not pinned]
    if pinned is None or pinned.facts is None or any(run.facts is None for run in others):
        return None
    steps: set[int] = set()
    compared: dict[str, None] = {}
    results = []
    for run in others:
        assert run.facts is not None
        for dataset, found in run.facts.accuracies.items():
            reference = pinned.facts.accuracies.get(dataset, {})
            for step in found.keys() & reference.keys():
                steps.add(step)
                compared[run.name] = None
                results.append((dataset, run.name, step, found[step], reference[step]))
    params = {"run": pinned.name, "others": list(compared), "steps": sorted(steps)[-MOST_STEPS:]}
    return (pinned.name, sorted(results, key=repr)), params
