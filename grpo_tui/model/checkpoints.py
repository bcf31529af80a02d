"""The box's answer to show_run as the face shows it: checkpoints, each with what its evaluations found. No Textual."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from grpo_train.run_dir.files import number
from grpo_tui.model.formatting import one_line, shortened

_PARTIAL = re.compile(r"partial: (\d+) of (\d+)\b")


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
    """One ``step_N``; step 0, once evaluated, is the model that the run started from."""

    step: int
    problem: str = ""
    evaluations: tuple[EvalResult, ...] = ()

    @property
    def name(self) -> str:
        return f"step_{self.step}"

    @property
    def is_complete(self) -> bool:
        """Whether a run can go on from it."""
        return self.step > 0 and not self.problem


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
    if 0 in results:
        views.append(CheckpointView(0, "", tuple(results[0])))
    return sorted(views, key=lambda view: -view.step)


def _result(dataset: str, row: dict[str, Any]) -> EvalResult:
    """A row of consolidated_metrics.csv: accuracy and its 95 % interval, or why there is none."""
    value, low, high = (number(_numeric(row.get(column))) for column in ("accuracy", "ci_low", "ci_high"))
    if value is None or not math.isfinite(value):
        return EvalResult(dataset, _without_figure(str(row.get("status") or "failed")))
    spread = _share((high - low) / 2) if low is not None and high is not None else ""
    return EvalResult(dataset, _share(value), spread, value)


def _without_figure(status: str) -> str:
    """What stands in a figure's place: how far an evaluation is (``partial: 96 of 1024 samples``), or what failed."""
    if part := _PARTIAL.match(status):
        done, of = int(part[1]), int(part[2])
        return f"{done / of:.0%} done" if done and of else "waiting"
    return shortened(one_line(status.split("\n")[0]), 24)


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
