"""The list of runs as CSV. No Textual."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from grpo_train.run_dir.files import utc_from
from grpo_tui.model.export import table_of
from grpo_tui.model.run_columns import KNOWN, Cells, backup_label, fact_value
from grpo_tui.model.run_list import RunList
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store


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


def run_table(runs: RunList, store: Store) -> str:
    """A CSV table of the runs that are listed, with their whole names and the chosen columns, in their order."""
    cells = runs.cells(store)
    columns: dict[str, Callable[[Cells, RunRow], Any]] = {"run": lambda c, r: r.name}
    for one in runs.shown_columns():
        columns |= RUN[one.id] if one.id in RUN else {one.id: partial(_fact, one.id)}
    return table_of(columns, ([read(cells, row) for read in columns.values()] for row in runs.rows))
