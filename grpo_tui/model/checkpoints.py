"""Checkpoints of a run with their evaluation results, from the reply to ``show_run``. No Textual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from grpo_train.run_dir.files import to_float
from grpo_tui.model.formatting import one_line, shortened


@dataclass(frozen=True)
class EvalResult:
    """Result of one evaluation of one checkpoint."""

    dataset: str
    figure: str
    """``.412``, or the progress or failure of an evaluation without a result."""
    spread: str = ""
    """Half of the 95 % interval, in the unit of ``figure``."""


@dataclass(frozen=True)
class CheckpointView:
    """One ``step_N``. Step 0 is the starting model; it is listed once it has been evaluated."""

    step: int
    problem: str = ""
    evaluations: tuple[EvalResult, ...] = ()

    @property
    def name(self) -> str:
        return f"step_{self.step}"

    @property
    def is_complete(self) -> bool:
        """Whether a run can resume from it."""
        return self.step > 0 and not self.problem


def checkpoint_views(run: str, reply: dict[str, Any]) -> list[CheckpointView]:
    """Checkpoints of a ``show_run`` reply, newest first. Evaluated steps without a checkpoint are left out."""
    results: dict[int, list[EvalResult]] = {}
    for evaluation in reply.get("evaluations") or ():
        dataset = str(evaluation.get("name", "")).removeprefix(f"{run}_")
        for row in evaluation.get("metrics") or ():
            if (step := _cell(row, "step")) is not None:
                results.setdefault(int(step), []).append(_result(dataset, row))
    views = []
    for checkpoint in reply.get("checkpoints") or ():
        step = int(to_float(checkpoint.get("step")) or 0)
        views.append(CheckpointView(step, str(checkpoint.get("problem") or ""), tuple(results.get(step, ()))))
    if 0 in results:
        views.append(CheckpointView(0, "", tuple(results[0])))
    return sorted(views, key=lambda view: -view.step)


def _result(dataset: str, row: dict[str, Any]) -> EvalResult:
    """Result of a table row: accuracy with its 95 % interval, else progress (``done`` of ``total``) or failure."""
    accuracy, low, high = (_cell(row, column) for column in ("accuracy", "ci_low", "ci_high"))
    if accuracy is not None and math.isfinite(accuracy):
        spread = _fraction((high - low) / 2) if low is not None and high is not None else ""
        return EvalResult(dataset, _fraction(accuracy), spread)
    status = str(row.get("status") or "failed")
    if status == "partial":
        done, total = _cell(row, "done"), _cell(row, "total")
        return EvalResult(dataset, f"{done / total:.0%} done" if done and total else "waiting")
    error = str(row.get("error") or "")
    return EvalResult(dataset, shortened(one_line(f"{status}: {error}" if error else status), 24))


def _fraction(value: float) -> str:
    """``.412``"""
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def _cell(row: dict[str, Any], column: str) -> float | None:
    """The number in a table cell, which is text, or None."""
    try:
        return float(row[column])
    except (KeyError, TypeError, ValueError):
        return None
