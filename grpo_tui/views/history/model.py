"""The runs of all boxes as tables: what a query finds, and what that cost. No Textual.

:func:`read` does the slow part and may run in a thread; it makes values that do not change.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from grpo_train.history.database import Database
from grpo_train.history.fields import DEFAULT, field_text, field_value
from grpo_train.history.query import QueryError
from grpo_train.history.record import RunRecord
from grpo_train.history.search import Search, parse_search
from grpo_train.run_dir.display import duration
from grpo_tui.box.formatting import is_number, money
from grpo_tui.box.run_list import Order
from grpo_tui.history.spending import BoxCost, Spending, box_rows, run_rows, spending, sums_of, unpriced_in

TABLES = ("runs", "cost by run", "cost by box", "cost by day")
FIRST = Order("launched", descending=True)


@dataclass(frozen=True)
class HistoryQuery:
    """What is shown."""

    query: str = ""
    table: str = TABLES[0]
    order: Order | None = None
    """Of the runs; None = as the query says, else the newest first."""


@dataclass(frozen=True)
class Rows:
    """A table as texts."""

    columns: tuple[str, ...]
    cells: tuple[tuple[str, ...], ...]
    widths: tuple[int, ...]
    right: tuple[bool, ...]
    """Which columns are aligned to the right."""


@dataclass(frozen=True)
class QueryAnswer:
    """What was found."""

    asked: HistoryQuery = field(default_factory=HistoryQuery)
    rows: Rows = field(default_factory=lambda: _rows((), ()))
    records: tuple[RunRecord, ...] = ()
    """Of each row; () where a row is a box or a day."""
    known: int = 0
    """Runs of the whole history."""
    found: int = 0
    """Runs that match the query."""
    sums: str = ""
    """What all of it cost, in one line."""
    order: Order = FIRST


@dataclass
class HistoryView:
    """What the History shows."""

    no_history: str
    """Why there is no history; "" if there is one."""
    asked: HistoryQuery = field(default_factory=HistoryQuery)
    answer: QueryAnswer | None = None
    problem: str = ""
    """Why the file cannot be read; what was read before stays."""
    mistake: QueryError | None = None
    """Why the query cannot be read; the last one that could be stays."""
    version: int = 0
    """Grows whenever something else is shown."""

    @property
    def order(self) -> Order:
        """What the runs are sorted by."""
        return self.answer.order if self.answer is not None else Order("launched")

    def nothing(self) -> str:
        """Why the table is empty."""
        if self.no_history:
            return self.no_history
        if self.answer is None:
            return self.problem or "reading the history"
        if not self.answer.known:
            return "no runs are known yet: the app records those of each box that it connects to"
        if self.answer.found:
            return "nothing ran in this time"
        return "no runs match" if self.mistake is None else "no runs match the last valid query"


def version_of(path: Path) -> object:
    """What changes when a program writes to the history."""
    found: list[tuple[int, int, int] | None] = []
    for name in (path, path.with_name(f"{path.name}-wal")):
        try:
            facts = name.stat()
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def read(path: Path, asked: HistoryQuery, now: float | None = None) -> QueryAnswer:
    """Read the history and answer. Raises QueryError for a mistake in the query, HistoryError for the file."""
    now = time.time() if now is None else now
    search = parse_search(asked.query, now)
    database = Database(path)
    records = database.records()
    order = asked.order or Order(search.order[0][0], search.order[0][1])
    if asked.order is not None:
        search = replace(search, order=((order.column, order.descending),))
    found = search.find(records)
    answer = QueryAnswer(asked, known=len(records), found=len(found), order=order)
    if asked.table == TABLES[0]:
        columns = _columns(search, found)
        cells = [[field_text(record, name) for name in columns] for record in found]
        return replace(answer, rows=_rows(columns, cells), records=tuple(found), sums=_cost_of(found))
    spent = spending(database, search.since, now)
    return _costs(answer, spent, found)


def _columns(search: Search, found: Sequence[RunRecord]) -> list[str]:
    """As ``grpo-tui history``: the default ones that have a value, and those that the query names."""
    named = [name for name in search.columns if name not in DEFAULT]
    has = {name for name in (*DEFAULT, *named) if any(field_value(record, name) is not None for record in found)}
    return [name for name in (*DEFAULT, *named) if name in has or name in ("name", "state")]


def _cost_of(found: Sequence[RunRecord]) -> str:
    costs = [record.cost for record in found if record.cost is not None]
    seconds = sum(record.seconds or 0.0 for record in found)
    hours = f"{seconds / 3600:,.1f} h" if seconds >= 3600 else duration(seconds)
    return f"ran for {hours}" + (f"  {money(sum(costs))}" if costs else "")


def _costs(answer: QueryAnswer, spent: Spending, found: Sequence[RunRecord]) -> QueryAnswer:
    by = answer.asked.table.rpartition(" ")[2]
    unpriced = unpriced_in(spent.by_box())
    sums = sums_of(spent) + (f" · without a price: {', '.join(unpriced)}" if unpriced else "")
    if by == "run":
        of = {record.identity: record for record in found}
        costs = [one for one in spent.by_run() if one.identity in of]
        columns, cells = run_rows(costs)
        records = tuple(of[one.identity] for one in costs)
        return replace(answer, rows=_rows(columns, cells), records=records, sums=sums)
    boxes: Sequence[BoxCost] = spent.by_box() if by == "box" else spent.by_day()[::-1]
    columns, cells = box_rows(boxes, with_day=by == "day")
    return replace(answer, rows=_rows(columns, cells), sums=sums)


def _rows(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> Rows:
    whole = [columns, *cells]
    widths = tuple(max(len(row[index]) for row in whole) for index in range(len(columns)))
    right = tuple(bool(cells) and all(is_number(row[index]) for row in cells) for index in range(len(columns)))
    return Rows(tuple(columns), tuple(map(tuple, cells)), widths, right)
