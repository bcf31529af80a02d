"""How Home shares its rows between the list, what is below it, and the logs; the list of runs as CSV. No Textual."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpo_train.run_dir.files import utc_from
from grpo_tui.box.rows import RunRow
from grpo_tui.box.run_columns import KNOWN, Cells, backup_label, fact_value
from grpo_tui.box.run_list import RunList
from grpo_tui.box.store import Store

NARROW = 104
"""Below this width the panels are one above the other."""
WIDE = 170
FRAME = 2
LIST_SHARE = 0.45
LIST_LEAST = 5
CHART_FIT = 4
"""Least rows of a panel with its frame."""
CHART_LEAST = 7
"""Rows of a chart and its frame from which there may be two, one above the other."""


@dataclass(frozen=True)
class Layout:
    """Rows of each panel with its frame; 0 = it is left out."""

    runs: int
    error: int = 0
    summary: int = 0
    charts: int = 0
    """Of all charts together."""
    chart_columns: int = 1
    chart_count: int = 0
    needs: int = 0
    log: int = 0
    completion: bool = False
    is_stacked: bool = False


def layout(
    width: int, rows: int, *, runs: int, error: int = 0, summary: int = 0, needs: int = 0, starting: bool = False
) -> Layout:
    """The layout of ``rows`` rows, given how many lines each panel has to show.

    On a narrow terminal ``summary`` is a line without a frame. ``starting``: only the console has news.
    """
    if starting:
        found = _stacked(width, rows, runs, error, summary + (FRAME if width >= NARROW else 0), needs)
        return replace(found, charts=0, chart_count=0, log=found.log + found.charts)
    return (_stacked if width < NARROW else _beside)(width, rows, runs, error, summary, needs)


def _stacked(width: int, rows: int, runs: int, error: int, summary: int, needs: int) -> Layout:
    listed = min(max(1, runs) + FRAME + 1, max(LIST_LEAST, rows * 35 // 100))
    left = rows - listed
    need = min(needs, 1 if rows < 30 else 5) + FRAME if needs and left >= 13 else 0
    left -= need
    failed = min(FRAME + min(error, 3 if rows < 30 else 8), left) if error else 0
    left -= failed
    if failed and left < CHART_FIT:  # not even a line of a log
        failed, left = failed + left - summary, summary
    left -= summary
    columns = 2 if width >= 70 else 1
    log = left - max(6, min(8, left // 2)) if left >= 10 else 0
    charts = left - log
    if failed and left < 14:  # the console says more than a curve
        charts, log = 0, left
    count = 0 if charts < 4 else columns
    return Layout(
        listed, failed, summary, charts if count else 0, columns, count, need, log if count else left, is_stacked=True
    )


def _beside(width: int, rows: int, runs: int, error: int, summary: int, needs: int) -> Layout:
    listed = min(max(1, runs) + FRAME + 3, max(8, int(LIST_SHARE * rows)), max(4, rows - 6))
    below = rows - listed
    left = below
    failed = min(FRAME + min(error, 3 if below < 20 else 8), left) if error else 0
    left -= failed
    about = FRAME + summary if left >= FRAME + summary + 4 else 0
    left -= about
    charts = left if left >= 4 else 0
    columns = 2 if width >= WIDE else 1
    lines = min(2, max(1, charts // CHART_LEAST)) if charts else 0
    need = min(FRAME + needs, max(FRAME + 2, below * 2 // 5)) if needs else 0
    log = below - need
    return Layout(listed, failed, about, charts, columns, columns * lines, need, log, width >= WIDE or log >= 16)


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
    "verdict": {"verdict": lambda c, r: r.verdict.word if r.verdict is not None else None},
    "step": {"step": _value("step"), "total_steps": lambda c, r: r.total_steps},
    "eta": {"eta_s": _value("eta")},
    "reward": {"avg_reward": _value("reward")},
    "trend": {"trend": lambda c, r: found.arrow if (found := c.trends.of(r.name)) is not None else None},
    "held_out": {"held_out": _value("held_out"), "held_out_dataset": _held_out},
    "held_out_step": {"held_out_step": _value("held_out_step")},
    "best_held_out": {
        "best_held_out": _value("best_held_out"),
        "best_held_out_step": lambda c, r: r.held_out.best_step if r.held_out is not None else None,
    },
    "best": {
        "best_reward": _value("best"),
        "best_step": lambda c, r: found.best_step if (found := c.trends.of(r.name)) is not None else None,
    },
    "last": {"last_reward": _value("last")},
    "took": {"took_s": _value("took")},
    "cost": {"cost_usd": _value("cost")},
    "age": {"age_s": _value("age")},
    "note": {"note": _value("note")},
    "backup": {"backup": lambda c, r: backup_label(r)},
    "start": {"start": _started},
}
"""The columns of the list of runs as they are in a table: numbers without their units, times in seconds or as dates."""


def csv_table(runs: RunList, store: Store) -> str:
    """A CSV table of the runs that are listed, with their whole names and the chosen columns, in their order."""
    from grpo_tui.box.export import table_of

    cells = runs.cells(store)
    columns: dict[str, Callable[[Cells, RunRow], Any]] = {"run": lambda c, r: r.name}
    for one in runs.shown_columns():
        columns |= RUN[one.id] if one.id in RUN else {one.id: partial(_fact, one.id)}
    return table_of(columns, ([read(cells, row) for read in columns.values()] for row in runs.rows))
