"""The box's answer to show_run as the face shows it: checkpoints, each with what its evaluations found. No Textual."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from grpo_train.files import number

_SCORES = ("accuracy", "mean_accuracy", "pass@1", "reward", "mean_reward")
"""Columns of consolidated_metrics.csv that can be a checkpoint's score, the best first."""


@dataclass(frozen=True)
class EvalResult:
    """One evaluation of one checkpoint."""

    dataset: str
    figure: str
    """``.412``, or the word for why there is none."""
    spread: str = ""
    """Half of the 95 % interval, in the figure's unit."""
    value: float | None = None


@dataclass(frozen=True)
class CheckpointView:
    """One ``step_N``."""

    step: int
    problem: str = ""
    evaluations: tuple[EvalResult, ...] = ()

    @property
    def name(self) -> str:
        return f"step_{self.step}"


def checkpoint_views(run: str, shown: dict[str, Any]) -> list[CheckpointView]:
    """Newest first. Steps that were evaluated but are gone (archived) are left out."""
    results: dict[int, list[EvalResult]] = {}
    for evaluation in shown.get("evaluations") or ():
        dataset = str(evaluation.get("name", "")).removeprefix(f"{run}_")
        for row in evaluation.get("metrics") or ():
            step = number(_numeric(row.get("step")))
            if step is not None:
                results.setdefault(int(step), []).append(_result(dataset, row))
    views = []
    for one in shown.get("checkpoints") or ():
        step = int(number(one.get("step")) or 0)
        views.append(CheckpointView(step, str(one.get("problem") or ""), tuple(results.get(step, ()))))
    return sorted(views, key=lambda view: -view.step)


def _result(dataset: str, row: dict[str, Any]) -> EvalResult:
    for column in _SCORES:
        value = number(_numeric(row.get(column)))
        if value is not None and math.isfinite(value):
            return EvalResult(dataset, _share(value), _half_interval(row, value), value)
    problem = str(row.get("status") or row.get("error") or "failed")
    return EvalResult(dataset, problem.split("\n")[0][:24])


def _half_interval(row: dict[str, Any], value: float) -> str:
    for low, high in (("ci_low", "ci_high"), ("accuracy_ci_low", "accuracy_ci_high"), ("ci95_low", "ci95_high")):
        ends = number(_numeric(row.get(low))), number(_numeric(row.get(high)))
        if ends[0] is not None and ends[1] is not None:
            return _share((ends[1] - ends[0]) / 2)
    for column in ("ci95", "accuracy_ci95", "ci"):
        if (half := number(_numeric(row.get(column)))) is not None:
            return _share(half)
    for column in ("stderr", "accuracy_stderr", "standard_error"):
        if (error := number(_numeric(row.get(column)))) is not None:
            return _share(1.96 * error)
    count = number(_numeric(row.get("n", row.get("problems", row.get("count")))))
    if count and 0 <= value <= 1:
        return _share(1.96 * math.sqrt(value * (1 - value) / count))
    return ""


def _share(value: float) -> str:
    text = f"{value:.3f}"
    return text.replace("0.", ".", 1) if text.startswith("0.") else text


def _numeric(value: Any) -> Any:
    """CSV cells are text."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value
