"""What a query, a column and an order name: the fields of a run's record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from grpo_train.history.record import RunRecord
from grpo_train.run_dir.display import duration, fraction, metric_text, metric_value, money, setting, state_label
from grpo_train.run_dir.files import utc_from
from grpo_train.run_dir.verdict import VERDICTS, alarm_of

ALIASES = {
    "task": "cfg.task.name", "model": "cfg.model.backbone", "lr": "cfg.optimizer.learning_rate", "held-out": "held_out",
    "run": "name", "start": "launched", "eval": "eval.accuracy",
}  # fmt: skip
"""Short names."""
BEST = ("best", "best_step")
ACCURACIES = ("accuracy", "best", "ci_low", "ci_high")
"""Columns of an evaluation that are shares of its problems."""
PREFIXES = ("cfg.", "eval.", "max.", "min.", "last.")
DEFAULT = ("name", "box", "state", "verdict", "step", "reward", "held_out", "took", "cost", "backup", "launched")


@dataclass(frozen=True)
class Field:
    """One field that every record has."""

    name: str
    about: str
    value: Callable[[RunRecord], Any]
    """Text, number or None; times in seconds since the epoch."""
    text: Callable[[Any], str] = str
    words: Callable[[RunRecord], str] | None = None
    """Text that the value alone does not give."""
    is_time: bool = False


def _day(value: Any) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(value))


def _state(record: RunRecord) -> str:
    return " ".join(state_label(record.state, alarm=alarm_of(record.verdict))[:2])


def _held_out(record: RunRecord) -> float | None:
    last = _last_evaluated(record)
    return None if last is None else last["accuracy"]


def _last_evaluated(record: RunRecord) -> dict[str, float] | None:
    """The numbers of the last evaluated step, of the first dataset that has it."""
    rows = [evaluation["rows"][-1] for evaluation in record.evaluations if evaluation["rows"]]
    last: dict[str, float] | None = max(rows, key=lambda row: row["step"], default=None)
    return last


def _per_point(index: int) -> Callable[[RunRecord], float | None]:
    return lambda record: None if record.cost_per_point is None else record.cost_per_point[index]


FIELDS = {
    field.name: field
    for field in (
        Field("name", "name of the run", lambda r: r.name),
        Field("identity", "the same wherever a copy of the run is", lambda r: r.identity),
        Field("box", "box, by its name in boxes.yaml", lambda r: r.box or None),
        Field("root", "directory of runs on the box", lambda r: r.root),
        Field("state", "as last heard", lambda r: r.state, words=_state),
        Field("verdict", "as last heard", lambda r: r.verdict and r.verdict.word, lambda v: f"{VERDICTS[v][0]} {v}"),
        Field("step", "last step", lambda r: r.number("step")),
        Field("total_steps", "steps it is to run", lambda r: r.number("total_steps")),
        Field("reward", "of the last step", lambda r: r.number("reward"), metric_value),
        Field("held_out", "accuracy of the last evaluated step", _held_out, fraction),
        Field("held_out_step", "the last evaluated step", lambda r: (_last_evaluated(r) or {}).get("step")),
        Field(
            "gain", "held-out accuracy gained since the first evaluation", lambda r: r.gain and r.gain.gained, fraction
        ),
        Field("took", "seconds it ran", lambda r: r.seconds, duration),
        Field("hours", "hours it ran", lambda r: r.seconds and r.seconds / 3600, lambda v: f"{v:.2f}"),
        Field("cost", "dollars so far", lambda r: r.cost, money),
        Field("projected", "dollars at its last step", lambda r: r.projected_cost, money),
        Field("cost_per_step", "dollars", lambda r: r.cost_per_step, money),
        Field("cost_per_1000", "dollars per 1,000 completions", lambda r: r.cost_per_1000, money),
        Field("cost_per_point", "dollars per point of held-out accuracy gained", _per_point(0), money),
        Field("cost_per_point_low", "lower end of its 95 % interval", _per_point(1), money),
        Field("cost_per_point_high", "upper end of its 95 % interval", _per_point(2), money),
        Field("backup", "none, same disk, behind or complete", lambda r: r.backup or "none"),
        Field("sweep", "the sweep that trained it", lambda r: r.summary.get("sweep")),
        Field("parent", "identity of the run it continues", lambda r: r.parent or None),
        Field("launched", "when it was launched", lambda r: r.time("launched_at"), _day, is_time=True),
        Field("active", "its last sign of life", lambda r: r.active_at, _day, is_time=True),
        Field("step_seconds", "of the last step", lambda r: r.number("step_seconds"), lambda v: f"{v:.2f}"),
        Field("restarts", "since its last start", lambda r: r.number("restarts") or 0.0),
        Field("nproc", "processes", lambda r: r.number("nproc")),
        Field("device", "what it trains on", lambda r: r.summary.get("device")),
        Field("host", "of a run that is live elsewhere", lambda r: r.summary.get("host")),
        Field("note", "the user's note", lambda r: r.summary.get("note")),
        Field("error", "why it failed", lambda r: r.summary.get("error")),
    )
}


def field_value(record: RunRecord, name: str) -> Any:
    """The value of a field, a config key (``cfg.KEY`` or ``section.key``), an evaluation (``eval.COLUMN``,
    ``eval.DATASET.COLUMN``) or a metric (its last value, ``max.NAME``, ``min.NAME``); None where there is none."""
    name = ALIASES.get(name, name)
    if (field := FIELDS.get(name)) is not None:
        return field.value(record)
    prefix, _, rest = name.partition(".")
    if prefix == "cfg":
        return record.config_value(rest)
    if prefix == "eval":
        return _evaluated(record, rest)
    if prefix in ("last", "min", "max"):
        return (record.metric(rest) or (None, None, None))[("last", "min", "max").index(prefix)]
    if (metric := record.metric(name)) is not None:
        return metric[0]
    return record.config_value(name) if "." in name else None


def _evaluated(record: RunRecord, name: str) -> float | None:
    """A column of the last evaluated step; ``best`` is the highest accuracy, ``best_step`` the step that has it."""
    dataset, _, column = name.rpartition(".")
    evaluations = [one for one in record.evaluations if one["rows"] and dataset in ("", one["dataset"])]
    if column in BEST:
        rows = [row for one in evaluations for row in one["rows"]]
        best: dict[str, float] = max(rows, key=lambda row: row["accuracy"], default={})
        return best.get("accuracy" if column == "best" else "step")
    last: dict[str, float] = max((one["rows"][-1] for one in evaluations), key=lambda row: row["step"], default={})
    return last.get(column)


def field_text(record: RunRecord, name: str) -> str:
    """The value of a field for people; "" without one."""
    value, name = field_value(record, name), ALIASES.get(name, name)
    if value is None:
        return ""
    if (field := FIELDS.get(name)) is not None and field.words is not None:
        return field.words(record)
    if field is not None and field.text is not str:
        return field.text(value)
    prefix, _, rest = name.partition(".")
    if prefix == "eval" and rest.rpartition(".")[2] in ACCURACIES:
        return fraction(value)
    metric = rest if prefix in ("last", "min", "max") else name
    return metric_text(metric, value) if field is None and record.metric(metric) is not None else setting(value)


def plain_value(record: RunRecord, name: str) -> Any:
    """The value of a field as strict JSON and CSV have it: times in ISO 8601, whole numbers as integers."""
    value = field_value(record, name)
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        if (field := FIELDS.get(ALIASES.get(name, name))) is not None and field.is_time:
            return utc_from(value)
        return int(value) if value.is_integer() and abs(value) < 1e15 else value
    return value


def known_names(records: Iterable[RunRecord]) -> list[str]:
    """Every name that :func:`field_value` finds anything under in some of the records."""
    found: dict[str, None] = dict.fromkeys([*FIELDS, *ALIASES])
    for record in records:
        found |= dict.fromkeys(f"cfg.{key}" for key in record.config)
        found |= dict.fromkeys(record.metrics)
        for one in record.evaluations:
            for row in one["rows"][-1:]:
                found |= dict.fromkeys(f"eval.{column}" for column in [*row, *BEST])
                found |= dict.fromkeys(f"eval.{one['dataset']}.{column}" for column in [*row, *BEST])
    return list(found)
