"""Checkpoints of a run with their evaluation results, from the reply to ``show_run``. No Textual."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_tui.model.formatting import fraction, one_line, shortened


@dataclass(frozen=True)
class EvalResult:
    """Result of one evaluation of one checkpoint."""

    dataset: str
    figure: str
    """``.412``, or the progress or failure of an evaluation without a result."""
    spread: str = ""
    """Half of the 95 % interval, in the unit of ``figure``."""
    accuracy: float | None = None
    """0 … 1; None without a result."""


@dataclass(frozen=True)
class CheckpointView:
    """One ``step_N``. Step 0 is the starting model; it is listed once it has been evaluated."""

    step: int | None
    """None: it cannot be read."""
    problem: str = ""
    evaluations: tuple[EvalResult, ...] = ()

    @property
    def name(self) -> str:
        return "step_?" if self.step is None else f"step_{self.step}"

    @property
    def is_complete(self) -> bool:
        """Whether a run can resume from it."""
        return bool(self.step) and not self.problem


def checkpoint_views(run: str, reply: dict[str, Any]) -> list[CheckpointView]:
    """Checkpoints of a ``show_run`` reply, newest first; before them, what cannot be read.

    Evaluated steps without a checkpoint are left out.
    """
    views = []
    results: dict[int, list[EvalResult]] = {}
    for evaluation in reply.get("evaluations") or ():
        if reason := evaluation.get("unreadable"):
            views.append(CheckpointView(None, f"evaluation {evaluation['name']} is unreadable: {reason}"))
    for _, evaluated, result in evaluated_steps(run, reply):
        results.setdefault(evaluated, []).append(result)
    for checkpoint in reply.get("checkpoints") or ():
        step = None if checkpoint["step"] is None else int(checkpoint["step"])
        evaluations = () if step is None else tuple(results.get(step, ()))
        views.append(CheckpointView(step, checkpoint.get("problem") or "", evaluations))
    if 0 in results:
        views.append(CheckpointView(0, "", tuple(results[0])))
    return sorted(views, key=lambda view: (view.step is not None, -(view.step or 0)))


def evaluated_steps(run: str, reply: Mapping[str, Any]) -> Iterator[tuple[str, int, EvalResult]]:
    """Each evaluated step in a ``show_run`` reply: name of the evaluation, step, result."""
    for evaluation in reply.get("evaluations") or ():
        dataset = evaluation["name"].removeprefix(f"{run}_")
        for row in evaluation.get("metrics") or ():
            step = row.get("step") or ""
            if step.isascii() and step.isdigit() and len(step) <= 15:
                yield evaluation["name"], int(step), _result(dataset, row)


def _result(dataset: str, row: dict[str, Any]) -> EvalResult:
    """Result of a table row: accuracy with its 95 % interval, else progress (``done`` of ``total``) or failure."""
    accuracy, low, high = (_cell(row, column) for column in ("accuracy", "ci_low", "ci_high"))
    if accuracy is not None and math.isfinite(accuracy):
        spread = fraction((high - low) / 2) if low is not None and high is not None else ""
        return EvalResult(dataset, fraction(accuracy), spread, accuracy)
    status = row.get("status") or "failed"
    if status == "partial":
        done, total = _cell(row, "done"), _cell(row, "total")
        return EvalResult(dataset, f"{done / total:.0%} done" if done and total else "waiting")
    error = row.get("error") or ""
    return EvalResult(dataset, shortened(one_line(f"{status}: {error}" if error else status), 24))


def _cell(row: dict[str, Any], column: str) -> float | None:
    """The number in a table cell, which is text, or None."""
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        return None
