"""Columns of the list of runs: their texts, and what they sort by. Any metric or config key may be one. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from grpo_train.run_dir.display import STATES
from grpo_tui.model import progress
from grpo_tui.model.formatting import (
    compact_number,
    fraction,
    metric_value,
    one_line,
    short_age,
    short_duration,
    shortened,
)
from grpo_tui.model.run_facts import RunFacts
from grpo_tui.model.run_names import SHORT, base_name
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Store
from grpo_tui.model.transfers import transfer_label
from grpo_tui.model.trends import ARROWS, CELLS, Trends

VALUE_WIDTH = 8
"""Cells of a metric."""
TEXT_WIDTH = 18
"""Maximum cells of a config value or a state."""
DATASET_WIDTH = 12
NOTE_WIDTH = 30
DEFAULT = ("state", "step", "eta", "reward", "trend", "held_out", "took", "cost", "age")


@dataclass(frozen=True)
class Cells:
    """Where the columns read."""

    store: Store
    facts: RunFacts
    trends: Trends


@dataclass(frozen=True)
class Column:
    """One column. ``value`` is what it sorts by; None is always last."""

    id: str
    title: str
    rank: int
    """The higher, the sooner it leaves a narrow terminal."""
    text: Callable[[Cells, RunRow], str]
    value: Callable[[Cells, RunRow], Any]
    width: int = 0
    """Cells of every text; 0 = as many as the longest text has."""
    is_left: bool = False


def _steps(cells: Cells, row: RunRow) -> str:
    step = progress.step_of(cells.store, row)
    return f"{step}/{row.total_steps}" if row.total_steps is not None else str(step)


def _reward(cells: Cells, row: RunRow) -> str:
    """The smoothed reward with its direction; until the box has sent it, that of the last step."""
    trend, value = cells.trends.of(row.name), _smoothed(cells, row)
    text = metric_value(value)
    text = text if len(text) < VALUE_WIDTH else compact_number(value, VALUE_WIDTH - 1)
    return f"{text} {trend.arrow if trend is not None and trend.arrow else ' '}"


def _smoothed(cells: Cells, row: RunRow) -> float | None:
    trend = cells.trends.of(row.name)
    return row.reward if trend is None or trend.last is None else trend.last


def _direction(cells: Cells, row: RunRow) -> int | None:
    trend = cells.trends.of(row.name)
    return ARROWS.index(trend.arrow) if trend is not None and trend.arrow else None


def _curve(cells: Cells, row: RunRow) -> str:
    trend = cells.trends.of(row.name)
    return "" if trend is None else trend.curve


def _held_out(cells: Cells, row: RunRow) -> str:
    if row.held_out is None:
        return ""
    dataset = row.held_out.dataset
    return f"{fraction(row.held_out.accuracy)} {dataset[:DATASET_WIDTH]}"


def _cost(cells: Cells, row: RunRow) -> str:
    dollars = progress.cost(cells.store, row)
    return "" if dollars is None else f"{dollars:,.2f}"


def backup_label(row: RunRow) -> str:
    """State of a run's backup, with a sign that needs no color; of a command at work on it or failed, that."""
    if row.transfer is not None:
        return transfer_label(row.transfer)
    if row.backup is None:
        return "– none"
    if row.backup.same_disk:
        return "= same disk"
    if behind := row.backup.behind:
        return f"▲ {behind} {'step' if behind == 1 else 'steps'} behind"
    return f"✔ step {row.backup.step}" if row.backup.step else "✔ logs"


def backup_word(row: RunRow) -> str:
    """State of a run's backup, for filters: ``none``, ``same disk``, ``behind`` or ``complete``."""
    if row.backup is None:
        return "none"
    return "same disk" if row.backup.same_disk else "behind" if row.backup.behind else "complete"


def _started(cells: Cells, row: RunRow) -> str:
    return "" if row.launched_at is None else time.strftime("%m-%d %H:%M", time.localtime(row.launched_at))


def _state_order(cells: Cells, row: RunRow) -> int:
    return list(STATES).index(row.shown_state) if row.shown_state in STATES else len(STATES)


KNOWN = {
    column.id: column
    for column in (
        Column("name", "name", 0, lambda c, r: r.name, lambda c, r: r.name.lower(), is_left=True),
        Column(
            "state", "state", 4, lambda c, r: shortened(r.label[1], TEXT_WIDTH), _state_order,
            is_left=True,
        ),
        Column("step", "step", 0, _steps, lambda c, r: progress.step_of(c.store, r)),
        Column(
            "eta", "ETA", 5, lambda c, r: short_duration(progress.eta(c.store, r)),
            lambda c, r: progress.eta(c.store, r), 6,
        ),
        Column("reward", "avg reward", 1, _reward, _smoothed, VALUE_WIDTH + 1),
        Column("trend", "trend", 7, _curve, _direction, CELLS, is_left=True),
        Column(
            "held_out", "held-out", 6, _held_out, lambda c, r: r.held_out.accuracy if r.held_out else None, is_left=True
        ),
        Column(
            "took", "took", 9, lambda c, r: short_duration(progress.took(c.store, r)),
            lambda c, r: progress.took(c.store, r), 6,
        ),
        Column("cost", "cost $", 8, _cost, lambda c, r: progress.cost(c.store, r)),
        Column("age", "age", 3, lambda c, r: short_age(c.store.row_age(r)), lambda c, r: c.store.row_age(r), 4),
        Column("note", "note", 11, lambda c, r: r.note[:NOTE_WIDTH], lambda c, r: r.note or None, is_left=True),
        Column(
            "backup", "backup", 6, lambda c, r: backup_label(r), lambda c, r: r.backup.behind if r.backup else None,
            is_left=True,
        ),
        Column("start", "start", 10, _started, lambda c, r: r.launched_at, 11),
    )
}  # fmt: skip
"""The columns that every run has, besides the metrics and config keys."""
BACKUP = "backup"
"""Shown without being chosen where a run of the box has a backup."""


def column(name: str) -> Column:
    """A column by its id: a known one, else a metric or a config key."""
    if name in KNOWN:
        return KNOWN[name]
    title = SHORT.get(name, name if "/" in name else name.rpartition(".")[2])
    return Column(name, title, 2, lambda c, r: _fact(c, r, name), lambda c, r: fact_value(c, r, name))


def fact_value(cells: Cells, row: RunRow, name: str) -> Any:
    """A value of a run's configuration, else the last value of a metric; None without either."""
    value = cells.facts.config(row.name, name)
    return cells.facts.metric(row.name, name) if value is None else value


def _fact(cells: Cells, row: RunRow, name: str) -> str:
    value = fact_value(cells, row, name)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return compact_number(value, VALUE_WIDTH) if cells.facts.metric(row.name, name) is None else metric_value(value)
    return one_line(base_name(str(value)) if name.endswith("backbone") else str(value))[:TEXT_WIDTH]


def sort_key(value: Any) -> tuple[bool, Any]:
    """A key under which numbers and texts compare."""
    return (True, value.lower()) if isinstance(value, str) else (False, value)
