"""When a run stops by itself: ``workflow.stop_when`` and ``budget``. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from grpo_train.config.schema import Config
from grpo_train.config.sections.workflow import Collapse, Plateau
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.display import short_hours
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.safe_json import Unreadable, open_regular, parse_object


class StopRules:
    """Follows the log of a run and says when a rule or the budget stops it."""

    def __init__(self, run: RunDir, config: Config, from_step: int) -> None:
        """``from_step``: rows up to it are not looked at."""
        self._log, self._config, self._from_step = run.logs / "train_log.jsonl", config, from_step
        self._rules = config.workflow.stop_when
        self._offset = 0
        self._rest = b""
        metrics = {each.metric for rule in self._rules if (each := rule.plateau or rule.collapse)}
        self._values: dict[str, dict[int, float]] = {metric: {} for metric in metrics}

    def broken(self) -> str:
        """Which of ``workflow.stop_when`` holds now; "" for none."""
        if not self._rules:
            return ""
        self._follow()
        for rule in self._rules:
            if rule.plateau and plateau(self._series(rule.plateau.metric), rule.plateau):
                each = rule.plateau
                return (
                    f"plateau: {each.metric} rose by less than {each.min_gain:g} from the {each.steps} steps before to "
                    f"the last {each.steps} steps"
                )
            if rule.collapse and collapse(self._series(rule.collapse.metric), rule.collapse):
                one = rule.collapse
                return f"collapse: {one.metric} was below {one.below:g} of its best for {one.for_} steps"
        return ""

    def _series(self, metric: str) -> list[float]:
        rows = self._values[metric]
        return [rows[step] for step in sorted(rows)]

    def _follow(self) -> None:
        """Read what was appended to the log; a row replaces those of its step and later, which a resume repeats."""
        try:
            with open_regular(self._log) as file:
                file.seek(self._offset)
                data = file.read()
        except (OSError, Unreadable):
            return
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            try:
                row = parse_object(line)
            except Unreadable:  # a line that a crash cut off
                continue
            step = int(to_float(row.get("step")) or 0)
            for metric, rows in self._values.items():
                for later in [known for known in rows if known >= step]:
                    del rows[later]
                value = to_float(row.get(metric))
                if step > self._from_step and value is not None and math.isfinite(value):
                    rows[step] = value


def plateau(values: Sequence[float], rule: Plateau) -> bool:
    """Whether the mean over the last ``steps`` values is not ``min_gain`` above the mean over as many before."""
    if len(values) < 2 * rule.steps:
        return False
    last, before = values[-rule.steps :], values[-2 * rule.steps : -rule.steps]
    return (sum(last) - sum(before)) / rule.steps < rule.min_gain


def collapse(values: Sequence[float], rule: Collapse) -> bool:
    """Whether each of the last ``for`` values is below the share ``below`` of the best mean over ``for`` values before
    them. Never where that is not positive: a share of it means nothing."""
    length = rule.for_
    if len(values) < 2 * length:
        return False
    sums = [0.0, *accumulate(values[:-length])]
    best = max(sums[i + length] - sums[i] for i in range(len(sums) - length)) / length
    return best > 0 and all(value < rule.below * best for value in values[-length:])


def over_budget(config: Config, run_seconds: float) -> str:
    """Why a run of this length is over its budget; "" if it is not."""
    budget, hours = config.budget, run_seconds / 3600
    if budget.limit_hours is None or hours < budget.limit_hours:
        return ""
    if budget.hours is not None and hours >= budget.hours:
        return f"budget.hours: {short_hours(hours)} of {budget.hours:g} h are used"
    spent = hours * (budget.price_per_hour or 0)
    return f"budget.dollars: ${spent:{'.2f' if spent >= 0.01 else '.2g'}} of ${budget.dollars:g} are spent"
