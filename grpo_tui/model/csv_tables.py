"""What lists and charts show, as CSV: samples of rollouts, runs, samples of GPUs. No Textual."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from grpo_train.run_dir.files import utc_from
from grpo_tui.model.box_history import BoxHistory
from grpo_tui.model.rollout_groups import Sample
from grpo_tui.model.rollout_reader import RolloutReader
from grpo_tui.model.run_columns import KNOWN, Cells, backup_label, fact_value
from grpo_tui.model.run_list import RunList
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store

SAMPLE = (
    "step", "group", "sample", "reward", "advantage", "length", "correct", "formatted", "flexible", "truncated",
    "discarded", "reason",
)  # fmt: skip
DETAILS = ("answer", "gold", "task", "role")
"""What a list of samples does not have, and a request for some of them has."""
REWARDS = "rewards/"
"""Before the name of each component of the reward."""
GPU = ("time", "gpu", "use_percent", "memory_mib", "power_w", "temperature_c")
FORMULA = ("=", "+", "-", "@", "\t")
"""A text that begins so is a formula to a spreadsheet."""


def _value(name: str) -> Callable[[Cells, RunRow], Any]:
    return KNOWN[name].value


def _fact(name: str, cells: Cells, row: RunRow) -> Any:
    return fact_value(cells, row, name)


def _held_out(cells: Cells, row: RunRow) -> str | None:
    return row.held_out.dataset if row.held_out is not None else None


def _started(cells: Cells, row: RunRow) -> str | None:
    return utc_from(row.launched_at) if row.launched_at is not None else None


RUN: dict[str, dict[str, Callable[[Cells, RunRow], Any]]] = {
    "name": {},
    "state": {"state": lambda c, r: r.label[1]},
    "step": {"step": _value("step"), "total_steps": lambda c, r: r.total_steps},
    "eta": {"eta_s": _value("eta")},
    "reward": {"avg_reward": _value("reward")},
    "trend": {"trend": lambda c, r: found.arrow if (found := c.trends.of(r.name)) is not None else None},
    "held_out": {"held_out": _value("held_out"), "held_out_dataset": _held_out},
    "took": {"took_s": _value("took")},
    "cost": {"cost_usd": _value("cost")},
    "age": {"age_s": _value("age")},
    "note": {"note": _value("note")},
    "backup": {"backup": lambda c, r: backup_label(r)},
    "start": {"start": _started},
}
"""The columns of the list of runs as they are in a table: numbers without their units, times in seconds or as dates."""


def listed(reader: RolloutReader) -> list[Sample]:
    """The samples to save: the matches found in the file, those of the step, or all of the step, as listed."""
    if reader.search is not None and reader.search.step is None:
        return list(reader.search.matches)
    return [one for group in reader.groups for one in group.samples if not reader.is_filtered or reader.is_match(one)]


def sample_table(samples: Sequence[Sample], details: Sequence[Mapping[str, Any]]) -> str:
    """A CSV table of samples. ``details``: each as it was logged, with answer, gold answer and rewards."""
    rewards = list(dict.fromkeys(name for found in details for name in found.get("rewards") or {}))
    rows = (
        [*map(sample.get, SAMPLE), *map(found.get, DETAILS), *map((found.get("rewards") or {}).get, rewards)]
        for sample, found in zip(samples, details, strict=True)
    )
    return _table([*SAMPLE, *DETAILS, *(f"{REWARDS}{name}" for name in rewards)], rows)


def run_table(runs: RunList, store: Store) -> str:
    """A CSV table of the runs that are listed, with their whole names and the chosen columns, in their order."""
    cells = runs.cells(store)
    columns: dict[str, Callable[[Cells, RunRow], Any]] = {"run": lambda c, r: r.name}
    for one in runs.shown_columns():
        columns |= RUN[one.id] if one.id in RUN else {one.id: partial(_fact, one.id)}
    return _table(columns, ([read(cells, row) for read in columns.values()] for row in runs.rows))


def gpu_table(history: BoxHistory, low: float, high: float) -> tuple[str, int]:
    """A CSV table of what the GPUs did in a range of time, and the number of its samples."""
    found = [
        (one.at, index, one.use, one.memory_mib, one.power_w, one.temperature_c)
        for index in sorted({*history.own, *history.filled})
        for one in history.samples(index, low, high)
    ]
    return _table(GPU, ([utc_from(at), *values] for at, *values in sorted(found, key=lambda sample: sample[:2]))), len(
        found
    )


def _table(head: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(map(_cell, head))
    writer.writerows(map(_cell, row) for row in rows)
    return out.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, bool):
        return str(value).lower()
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) and value != "-Infinity" else value
