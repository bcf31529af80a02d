"""Which runs pass the filter of the list: words, and comparisons of any column, metric or config key. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from grpo_train.history.query import Comparison, Leaf, Node, Word, holds, leaves, matches
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


def passes(node: Node, cells: Cells, row: RunRow) -> bool:
    """Whether a run passes a filter. Never raises."""
    return matches(node, lambda leaf: _holds(leaf, cells, row))


def fields_of(node: Node) -> set[str]:
    """The fields of a filter that only the box knows: metrics and config keys."""
    return {SHORT.get(leaf.field, leaf.field) for leaf in leaves(node) if isinstance(leaf, Comparison)} - {
        *FIELDS, *KNOWN
    }  # fmt: skip


def missing_fields(node: Node, cells: Cells, rows: Sequence[RunRow]) -> list[str]:
    """The fields of a filter that none of the runs has."""
    names = {leaf.field for leaf in leaves(node) if isinstance(leaf, Comparison)}
    return sorted(name for name in names if all(value_of(cells, row, name) is None for row in rows))


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
