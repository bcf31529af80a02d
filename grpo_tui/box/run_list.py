"""What the list of runs shows: which runs pass the filter, in which order, with which columns. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grpo_train.history.query import (
    EVERYTHING,
    And,
    FieldCondition,
    Leaf,
    Node,
    Not,
    Or,
    QueryError,
    Word,
    all_of,
    any_of,
    leaves,
    matches,
    meets,
    parse_filter,
)
from grpo_train.run_dir.errors import nearest
from grpo_tui.box.rows import RunRow
from grpo_tui.box.run_columns import (
    BACKUP,
    DEFAULT,
    KEY_RANK,
    KNOWN,
    LAST_RANK,
    MOST_KEY_COLUMNS,
    TELLING_KEYS,
    Cells,
    Column,
    Names,
    backup_word,
    column,
    fact_value,
    short_names,
    sort_key,
)
from grpo_tui.box.run_facts import MOST_RUNS, KnownFacts, Trends
from grpo_tui.box.store import Store

HOUR = 3600.0
SHORT = {"held-out": "held_out", "task": "task.name", "model": "model.backbone", "lr": "optimizer.learning_rate"}
"""Other names of fields."""
FIELDS: dict[str, Callable[[Cells, RunRow], Any]] = {
    "state": lambda cells, row: row.shown_state,
    "verdict": lambda cells, row: row.verdict.word if row.verdict is not None else "",
    "name": lambda cells, row: row.name,
    "note": lambda cells, row: row.note,
    "device": lambda cells, row: row.device,
    "error": lambda cells, row: str(row.error.get("summary") or ""),
    "restarts": lambda cells, row: row.restarts,
    "backup": lambda cells, row: backup_word(row),
}
"""Fields that are not columns, or that compare as something else."""
ORDERS = ("<", "<=", ">", ">=")
TEXTS = ("state", "verdict", "name", "note", "device", "error", "backup")


def not_numbers(node: Node) -> list[FieldCondition]:
    """The comparisons of a filter that compare a number with a word."""
    return [
        one for one in comparisons(node) if one.operator in ORDERS and one.number is None and one.field not in TEXTS
    ]


def without(node: Node, left_out: Sequence[FieldCondition]) -> Node:
    """A filter without some of its comparisons."""
    return _without(node, left_out) or EVERYTHING


def _without(node: Node, left_out: Sequence[FieldCondition]) -> Node | None:
    if isinstance(node, And | Or):
        kept = [part for part in (_without(one, left_out) for one in node.parts) if part is not None]
        return (all_of if isinstance(node, And) else any_of)(kept) if kept else None
    if isinstance(node, Not):
        part = _without(node.part, left_out)
        return None if part is None else Not(part)
    return None if any(node is one for one in left_out) else node


def passes(node: Node, cells: Cells, row: RunRow) -> bool:
    """Whether a run passes a filter. Never raises."""
    return matches(node, lambda leaf: _holds(leaf, cells, row))


def fields_of(node: Node) -> set[str]:
    """The fields of a filter that only the box knows: metrics and config keys."""
    return {SHORT.get(leaf.field, leaf.field) for leaf in comparisons(node)} - {*FIELDS, *KNOWN}


def missing(node: Node, cells: Cells, rows: Sequence[RunRow]) -> list[FieldCondition]:
    """The comparisons of a filter whose field none of the runs has."""
    return [leaf for leaf in comparisons(node) if all(value_of(cells, row, leaf.field) is None for row in rows)]


def comparisons(node: Node) -> Iterator[FieldCondition]:
    """The comparisons of a filter, from left to right."""
    return (leaf for leaf in leaves(node) if isinstance(leaf, FieldCondition))


def _holds(leaf: Leaf, cells: Cells, row: RunRow) -> bool:
    if isinstance(leaf, Word):
        word = leaf.text.lower()
        task = cells.facts.config(row.name, "task.name")
        verdict = FIELDS["verdict"](cells, row)
        return word in f"{row.name} {row.shown_state} {verdict} {task or ''} {row.note}".lower()
    return meets(leaf, value_of(cells, row, leaf.field))


def value_of(cells: Cells, row: RunRow, name: str) -> Any:
    """The value that a filter compares, times in seconds; None if it is unknown."""
    name = SHORT.get(name, name)
    if name in FIELDS:
        return FIELDS[name](cells, row)
    if name in KNOWN:
        return KNOWN[name].value(cells, row)
    return fact_value(cells, row, name)


MEASURED = 400
"""Rows whose texts decide how wide a column is."""


@dataclass(frozen=True)
class Order:
    """What the list is sorted by."""

    column: str = "start"
    descending: bool = True

    def toggled(self, name: str) -> Order:
        """Sorted by a column; by the same one again, the other way round."""
        if name == self.column:
            return Order(name, not self.descending)
        return Order(name, descending=name not in ("name", "state", "verdict", "eta", "age"))

    @property
    def arrow(self) -> str:
        return "↓" if self.descending else "↑"


@dataclass
class RunList:
    """The user's choices for the list, and the rows they give. It outlives a change of box."""

    columns: tuple[str, ...] = DEFAULT
    order: Order = field(default_factory=Order)
    full_names: bool = False
    filter: str = ""
    """The filter as it is typed."""
    measured: frozenset[str] = frozenset()
    """Metrics that alarms need, whether a column shows them or not."""
    facts: KnownFacts = field(default_factory=KnownFacts)
    trends: Trends = field(default_factory=Trends)
    names: Names = field(default_factory=Names)
    rows: Sequence[RunRow] = ()
    version: int = 0
    """Increases whenever ``rows`` or ``names`` do."""
    _has_backups: bool = False
    _query: Node = EVERYTHING
    """The last filter that could be read."""
    _unreadable: QueryError | None = None
    _flaw: QueryError | None = None
    _longest: tuple[object, Mapping[str, int]] = (None, {})
    """What the rows without the selected one are made of, and the cells of their longest texts by column."""
    _made_of: object = None
    _named: object = None

    def forget(self) -> None:
        """Forget what belongs to a box."""
        self.facts, self.trends, self.names, self.rows = KnownFacts(), Trends(), Names(), ()
        self._made_of = self._named = None

    @property
    def mistake(self) -> QueryError | None:
        """What is wrong with ``filter``: the list is that of the last one that could be read, without what is wrong."""
        return self._unreadable or self._flaw

    def set_filter(self, text: str) -> None:
        """Apply a filter. A mistake in it leaves the list as it is."""
        self.filter = text
        try:
            self._query, self._unreadable = parse_filter(text), None
        except QueryError as error:
            self._unreadable = error

    def update(self, store: Store) -> None:
        """Choose and sort the rows, if anything changed."""
        self.facts.wanted = self._metrics()
        trends = self.trends.version if self.order.column in ("reward", "trend") else 0
        made_of = (id(store), store.versions["runs"], self._query, self.order, self.facts.version, trends)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        runs = store.runs or []
        self._has_backups = any(row.backup is not None or row.transfer is not None for row in runs)
        if len(self.facts.configs) > len(runs):
            self.facts.keep(row.name for row in runs)
        cells = self.cells(store)
        query = self._checked(runs, cells)
        self.rows = self._sorted([row for row in runs if passes(query, cells, row)], cells)
        named = (self.facts.version, frozenset(row.name for row in self.rows))
        if named != self._named:
            self._named = named
            self.names = short_names([row.name for row in self.rows], self.facts.configs)
        self.version += 1

    def _checked(self, runs: Sequence[RunRow], cells: Cells) -> Node:
        """The filter to apply: without numbers that are compared with words, and without fields that no run has."""
        rows, asked = runs[:MEASURED], fields_of(self._query)
        words = not_numbers(self._query)
        unknown = [one for one in missing(self._query, cells, rows) if SHORT.get(one.field, one.field) in asked]
        if not rows or not self.facts.has_answered(rows):
            unknown = []
        self._flaw = None
        if unknown:
            self._flaw = QueryError(self._no_run_has(unknown[0].field), unknown[0].column)
        elif words:
            self._flaw = QueryError(f"{words[0].field} is compared with a number", words[0].value_column)
        return without(self._query, [*words, *unknown]) if self._flaw is not None else self._query

    def _no_run_has(self, name: str) -> str:
        near = nearest(name, {*FIELDS, *KNOWN, *SHORT, *self.columns} - {name})
        return f"no run has {name}{f': did you mean {near}?' if near else ''}"

    def _metrics(self) -> set[str]:
        """What columns, order and filter name, but full names of keys of a configuration."""
        if not self.facts.version:
            return set()
        asked = {*self.columns, self.order.column, *fields_of(self._query)}
        return {*self.measured} | asked - {*KNOWN, *self.facts.keys()}

    def _sorted(self, rows: list[RunRow], cells: Cells) -> list[RunRow]:
        """In the chosen order; without a choice live runs first, then the newest, as the box lists them. Without a
        value: last, whatever the direction."""
        order = self.order
        if order == Order():
            return sorted(rows, key=lambda row: not row.is_live)
        value = column(order.column).value
        keyed = [(value(cells, row), row) for row in rows]
        known = [(sort_key(found), row) for found, row in keyed if found is not None and found == found]
        known.sort(key=lambda pair: pair[0], reverse=order.descending)
        return [row for _, row in known] + [row for found, row in keyed if found is None or found != found]

    def unknown(self, store: Store) -> int:
        """Runs whose configuration and metrics are not asked for, if a column, the order or the filter needs them."""
        asked = {*self.columns, self.order.column, *fields_of(self._query)}
        needed = any(name not in KNOWN for name in asked)
        return max(0, len(store.runs or ()) - MOST_RUNS) if needed else 0

    def cells(self, store: Store) -> Cells:
        """Where the columns read."""
        return Cells(store, self.facts, self.trends)

    def nothing(self, store: Store) -> str:
        """Why no run passes the filter."""
        runs = (store.runs or ())[:MEASURED]
        if lacking := missing(self._query, self.cells(store), runs):
            name = lacking[0].field
            is_asked = SHORT.get(name, name) in fields_of(self._query) and not self.facts.has_answered(runs)
            return f"asking the box for {name}" if is_asked else self._no_run_has(name)
        return f"no runs match /{self.filter}"

    def name(self, run: str) -> str:
        """A run's name in the list."""
        return run if self.full_names else self.names.short.get(run, run)

    def shown_columns(self) -> list[Column]:
        """The chosen columns. Without a choice those of DEFAULT, more about rewards, the keys that differ, and notes;
        that of backups once there are any."""
        if self.columns != DEFAULT:
            return [column(name) for name in self.columns]
        names = list(DEFAULT)
        names[names.index("trend") : names.index("trend")] = ["best", "last"]
        names[names.index("held_out") + 1 : names.index("held_out") + 1] = ["held_out_step", "best_held_out"]
        found = [column(name) for name in names] + ([column(BACKUP)] if self._has_backups else [])
        keys = self.names.keys[:MOST_KEY_COLUMNS]
        found += [column(key, KEY_RANK if place < TELLING_KEYS else LAST_RANK) for place, key in enumerate(keys)]
        return [*found, column("note")]

    def widths(self, cells: Cells) -> Mapping[str, int]:
        """Cells of each column that has anything to show; the longest name under ``name``."""
        columns, selected = self.shown_columns(), cells.store.selected
        rows = self.rows[:MEASURED]
        others = [row for row in rows if row.name != selected]
        made_of = (
            self.facts.version,
            self.trends.version,
            cells.store.price_per_hour,
            [one.id for one in columns],
            others,
        )
        if made_of != self._longest[0]:  # the texts of the selected run change with every step
            self._longest = (made_of, {one.id: _longest(one, cells, others) for one in columns})
        own = [row for row in rows if row.name == selected]
        found = {"name": max((len(self.name(row.name)) for row in rows), default=0)}
        for one in columns:
            always = one.id in ALWAYS or one.id not in KNOWN
            longest = max(self._longest[1][one.id], _longest(one, cells, own), one.width if always else 0)
            if longest or always:
                found[one.id] = max(longest, len(one.title) + (1 if one.id == self.order.column else 0))
        return found


def _longest(one: Column, cells: Cells, rows: Sequence[RunRow]) -> int:
    """Cells of the longest text of a column; 0 if all are empty."""
    texts = (one.text(cells, row) for row in rows)
    return (one.width if any(texts) else 0) if one.width else max(map(len, texts), default=0)


ALWAYS = ("state", "step", "reward", "trend", "age")
"""Columns that keep their place while no run has a value."""
