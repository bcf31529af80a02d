"""The record of one run: what is kept of it, as plain JSON, and what can be asked of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from grpo_train.history.cost import Gain, Prices, gain_of
from grpo_train.run_dir import LIVE_STATES
from grpo_train.run_dir.files import number_in, time_of, to_float
from grpo_train.run_dir.verdict import RunVerdict

MAX_EVENTS = 50
KEPT_EVENTS = (
    "launched", "training", "resumed", "restarted", "stalled", "stop_asked", "stopped", "stopped_by_itself", "crashed",
    "killed", "finished", "tracking", "tracking_failed", "by_assistant",
)  # fmt: skip
EVENT_FIELDS = ("event", "step", "time", "from_step", "by", "device", "mode", "url", "op", "why")
SUMMARY = (
    "state", "host", "step", "total_steps", "reward", "step_seconds", "logged_at", "updated_at", "launched_at",
    "sweep", "started_at", "run_seconds", "restarts", "nproc", "device", "note", "error", "layout", "verdict",
)  # fmt: skip
"""Fields of a row of a list of runs that are kept."""
MISSING = object()
_DECODER = json.JSONDecoder()
Json = str
"""JSON that is parsed when it is needed: most queries need none of it."""


@dataclass
class RunRecord:
    """One run. Texts are JSON; "" = not known."""

    identity: str
    box: str
    root: str
    name: str
    summary: Mapping[str, Any]
    """Fields of :data:`SUMMARY`."""
    config_json: Json = ""
    metrics_json: Json = ""
    evaluations_json: Json = ""
    events_json: Json = ""
    backup: str = ""
    """``none``, ``same disk``, ``behind`` or ``complete``, as in the filters of the app; "" = not known."""
    parent: str = ""
    """Identity of the run that it continues on another box or under another name."""
    spans: Sequence[tuple[str, float, float]] = ()
    """When it ran: box, begin and end."""
    prices: Mapping[str, Prices] = field(default_factory=dict)
    """By box."""

    @cached_property
    def config(self) -> dict[str, Any]:
        """``section.key`` to value."""
        return json.loads(self.config_json) if self.config_json else {}

    @cached_property
    def metrics(self) -> dict[str, list[float | None]]:
        """Metric to its last, lowest and highest value."""
        return json.loads(self.metrics_json) if self.metrics_json else {}

    @cached_property
    def evaluations(self) -> list[dict[str, Any]]:
        """See :func:`kept_evaluations`."""
        return json.loads(self.evaluations_json) if self.evaluations_json else []

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """See :func:`events_of`."""
        return json.loads(self.events_json) if self.events_json else []

    def metric(self, name: str) -> list[float | None] | None:
        """A metric's last, lowest and highest value."""
        found: list[float | None] | object = _member(self.metrics_json, name)
        return found if isinstance(found, list) else None

    @property
    def state(self) -> str:
        return str(self.summary.get("state") or "")

    @cached_property
    def verdict(self) -> RunVerdict | None:
        """As last heard."""
        return RunVerdict.from_json(self.summary.get("verdict"))

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES

    def number(self, name: str) -> float | None:
        """A number of the summary; None also for NaN."""
        value = to_float(self.summary.get(name))
        return None if value is None or math.isnan(value) else value

    def time(self, name: str) -> float | None:
        """A time of the summary in seconds since the epoch."""
        return time_of(self.summary.get(name))

    @property
    def active_at(self) -> float | None:
        """Its last sign of life."""
        return self.time("updated_at") or self.time("logged_at") or self.time("launched_at")

    def config_value(self, key: str) -> Any:
        """A value of the configuration, by ``section.key`` or by ``key`` where one section has it."""
        if (value := _member(self.config_json, key)) is not MISSING:
            return value
        if "." in key:
            return None
        found = [name for name in self.config if name.endswith(f".{key}")]
        return self.config[found[0]] if len(found) == 1 else None

    # cost ----------------------------------------------------------------------------------------------------

    @property
    def seconds(self) -> float | None:
        """Run time over all its starts."""
        measured = self.number("run_seconds")
        return measured if measured is not None else sum(end - start for _, start, end in self.spans) or None

    @cached_property
    def ran(self) -> list[tuple[str, float, float]]:
        """When it ran: the spans, and the run time since they were heard."""
        missing = (self.number("run_seconds") or 0.0) - sum(end - start for _, start, end in self.spans)
        if missing <= 1.0 or (at := self.active_at) is None:
            return list(self.spans)
        return [*self.spans, (self.box, at - missing, at)]

    @cached_property
    def cost(self) -> float | None:
        """Dollars so far; None without a price of each of its boxes, or without a run time."""
        if self.seconds is None:
            return None
        if not self.ran or any(box not in self.prices for box, _, _ in self.ran):
            return None
        return sum(self.prices[box].cost([(start, end)]) for box, start, end in self.ran)

    @property
    def cost_per_step(self) -> float | None:
        step = self.number("step")
        return self.cost / step if self.cost is not None and step else None

    @property
    def cost_per_1000(self) -> float | None:
        """Dollars per 1,000 completions."""
        completions = 1.0
        for key in ("rollout.buffer_size", "rollout.num_generations"):
            completions *= to_float(self.config_value(key)) or math.nan
        per_update = to_float(self.config_value("algorithm.num_iterations")) or 1.0
        per_update *= to_float(self.config_value("algorithm.updates_per_buffer")) or 1.0
        per_step = self.cost_per_step
        return None if per_step is None or not completions > 0 else 1000 * per_step * per_update / completions

    @property
    def projected_cost(self) -> float | None:
        """Dollars at its last step, at its pace so far and the price of now; None for a run that is not live."""
        step, total = self.number("step"), self.number("total_steps")
        if not self.is_live or self.cost is None or not step or total is None or self.seconds is None:
            return None
        price = self.prices.get(self.box)
        pace = self.number("step_seconds") or self.seconds / step
        left, now = max(0.0, total - step) * pace, self.active_at
        return None if price is None or now is None else self.cost + price.cost([(now, now + left)])

    @cached_property
    def gain(self) -> Gain | None:
        """What its first evaluated dataset gained between the first and the last evaluated step."""
        for evaluation in self.evaluations:
            rows = evaluation["rows"]
            if len(rows) > 1 and (found := gain_of(evaluation["dataset"], rows[0], rows[-1])) is not None:
                return found
        return None

    @property
    def cost_per_point(self) -> tuple[float, float, float] | None:
        """Dollars per percentage point of held-out accuracy, with its interval."""
        if (gain := self.gain) is None or self.cost_per_step is None:
            return None
        return gain.dollars_per_point(self.cost_per_step * (gain.last_step - gain.first_step))


# ----------------------------------------------------------------------------------------------------- what is kept


def kept_summary(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is kept of a row of a list of runs. Raises TypeError, ValueError for a verdict that is none."""
    found = {key: row[key] for key in SUMMARY if row.get(key) not in (None, "")}
    if isinstance(error := found.get("error"), Mapping):
        found["error"] = str(error.get("summary") or "")[:500]
    if (verdict := RunVerdict.from_json(found.pop("verdict", None))) is not None:
        found["verdict"] = verdict.to_json()
    return found


def events_of(events: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is kept of a run's events: starts, stops, resumes, crashes; the last MAX_EVENTS, and the launch."""
    kept = [
        {key: event[key] for key in EVENT_FIELDS if event.get(key) is not None} | _failure(event)
        for event in events
        if event.get("event") in KEPT_EVENTS
    ]
    return kept if len(kept) <= MAX_EVENTS else [kept[0], *kept[1 - MAX_EVENTS :]]


def _failure(event: Mapping[str, Any]) -> dict[str, str]:
    """Why a tracker failed; the errors of a run are in its summary."""
    return {"error": str(event.get("error"))[:500]} if event.get("event") == "tracking_failed" else {}


def kept_evaluations(run: str, evaluations: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What is kept of a run's evaluations, as :func:`grpo_train.run_dir.list_evaluations` lists them.

    ``dataset`` (its label), ``state``, ``started_at``, ``updated_at``, and ``rows``: the numbers of each step that has
    a result, in order of steps.
    """
    found = []
    for one in evaluations:
        rows = [numbers for row in one.get("metrics") or () if (numbers := _numbers(row)) is not None]
        rows.sort(key=lambda row: row["step"])
        dataset = str(one.get("dataset") or str(one.get("name", "")).removeprefix(f"{run}_"))[:255]
        times = {key: str(one[key]) for key in ("started_at", "updated_at") if one.get(key)}
        found.append({"dataset": dataset, "state": str(one.get("state", "")), **times, "rows": rows})
    return found


def metric_ends(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[float | None]]:
    """Metric to its last, lowest and highest value, from rows with ``name``, ``last``, ``min`` and ``max``."""
    return {row["name"]: [_finite(row.get(key)) for key in ("last", "min", "max")] for row in rows if row.get("name")}


def _numbers(row: Mapping[str, Any]) -> dict[str, float] | None:
    """The numbers of a row of an evaluation's table; None without a result."""
    found = {}
    for key, value in row.items():
        if (number := _as_number(value)) is not None and len(key) <= 64:
            found[key] = number
    return found if {"step", "accuracy"} <= found.keys() else None


def _as_number(text: Any) -> float | None:
    return _finite(number_in(text)) if isinstance(text, (str, int, float)) and len(str(text)) <= 32 else None


def _member(text: Json, key: str) -> Any:
    """A member of a flat object in JSON, without the others; MISSING without it.

    A key in quotes is found elsewhere only behind an escaped quote, or behind the end of a text, where a sign follows.
    """
    if key[:1] in (":", ",", "}"):
        return json.loads(text).get(key, MISSING) if text else MISSING
    label = json.dumps(key, ensure_ascii=False) + ": "
    at = text.find(label)
    while at > 0 and text[at - 1] == "\\":
        at = text.find(label, at + 1)
    return MISSING if at < 0 else _DECODER.raw_decode(text, at + len(label))[0]


def _finite(value: Any) -> float | None:
    number = to_float(value)
    return number if number is not None and math.isfinite(number) else None
