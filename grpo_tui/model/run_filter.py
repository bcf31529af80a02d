"""Which runs pass the filter of the list: words, and comparisons of any column, metric or config key. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from grpo_train.history.query import (
    EVERYTHING,
    And,
    Comparison,
    Leaf,
    Node,
    Not,
    Or,
    Word,
    all_of,
    any_of,
    holds,
    leaves,
    matches,
)
from grpo_tui.model.run_columns import KNOWN, Cells, backup_word, fact_value
from grpo_tui.model.run_row import RunRow

HOUR = 3600.0
SHORT = {"held-out": "held_out", "task": "task.name", "model": "model.backbone", "lr": "optimizer.learning_rate"}
"""Other names of fields."""
FIELDS: dict[str, Callable[[Cells, RunRow], Any]] = {
    "state": lambda cells, row: row.shown_state,
    "name": lambda cells, row: row.name,
    "note": lambda cells, row: row.note,
    "device": lambda cells, row: row.device,
    "error": lambda cells, row: str(row.error.get("summary") or ""),
    "restarts": lambda cells, row: row.restarts,
    "backup": lambda cells, row: backup_word(row),
}
"""Fields that are not columns, or that compare as something else."""
ORDERS = ("<", "<=", ">", ">=")
TEXTS = ("state", "name", "note", "device", "error", "backup")


def not_numbers(node: Node) -> list[Comparison]:
    """The comparisons of a filter that compare a number with a word."""
    return [
        one for one in comparisons(node) if one.operator in ORDERS and one.number is None and one.field not in TEXTS
    ]


def without(node: Node, left_out: Sequence[Comparison]) -> Node:
    """A filter without some of its comparisons."""
    return _without(node, left_out) or EVERYTHING


def _without(node: Node, left_out: Sequence[Comparison]) -> Node | None:
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


def missing(node: Node, cells: Cells, rows: Sequence[RunRow]) -> list[Comparison]:
    """The comparisons of a filter whose field none of the runs has."""
    return [leaf for leaf in comparisons(node) if all(value_of(cells, row, leaf.field) is None for row in rows)]


def comparisons(node: Node) -> Iterator[Comparison]:
    """The comparisons of a filter, from left to right."""
    return (leaf for leaf in leaves(node) if isinstance(leaf, Comparison))


def _holds(leaf: Leaf, cells: Cells, row: RunRow) -> bool:
    if isinstance(leaf, Word):
        word = leaf.text.lower()
        task = cells.facts.config(row.name, "task.name")
        return word in f"{row.name} {row.shown_state} {task or ''} {row.note}".lower()
    return holds(leaf, value_of(cells, row, leaf.field))


def value_of(cells: Cells, row: RunRow, name: str) -> Any:
    """The value that a filter compares, times in seconds; None if it is unknown."""
    name = SHORT.get(name, name)
    if name in FIELDS:
        return FIELDS[name](cells, row)
    if name in KNOWN:
        return KNOWN[name].value(cells, row)
    return fact_value(cells, row, name)
