"""Which records a query finds, and in which order.

Beside the conditions of :mod:`grpo_train.history.query`, a query may have at its top level:

``since:7d``         active within the last 7 days (``30m``, ``12h``, ``2w``), or since a date (``since:2026-11-01``)
``before:2026-11-01``  launched before a date, or longer ago than a time span
``sort:-reward``     the order; ``-`` = descending; ``sort:state,-reward`` has two keys
``limit:20``         at most that many
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from grpo_train.history.fields import ALIASES, FIELDS, field_value, known_names
from grpo_train.history.query import EVERYTHING, And, FieldCondition, Leaf, Node, Or, QueryError, all_of, leaves, meets
from grpo_train.history.query import matches as query_matches
from grpo_train.history.query import parse_filter as parse_query
from grpo_train.history.record import RunRecord
from grpo_train.run_dir.errors import nearest

DIRECTIVES = ("since", "before", "sort", "limit")
ALWAYS = ("eval.accuracy", "eval.best")
"""Fields that are accepted before any run has them."""
UNITS = {"m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)([mhdw])")


@dataclass(frozen=True)
class Search:
    """A parsed query."""

    node: Node = EVERYTHING
    since: float | None = None
    """Seconds since the epoch."""
    before: float | None = None
    order: tuple[tuple[str, bool], ...] = (("launched", True),)
    """Field, and whether it descends."""
    limit: int | None = None
    columns: dict[str, int] = field(default_factory=dict)
    """Field that the query names to its place in the text."""

    def find(self, records: Sequence[RunRecord], also: Iterable[str] = ()) -> list[RunRecord]:
        """The records that match, in order. Raises QueryError for a field, also of the columns in ``also``, that none
        of the records has."""
        named = {**dict.fromkeys(also, 0), **self.columns}
        if records and (unknown := [name for name in named if not _is_known(name, records)]):
            near = nearest(unknown[0], known_names(records))
            hint = f"; did you mean {near}?" if near else ""
            raise QueryError(f"no run has a field '{unknown[0]}'{hint}", named[unknown[0]])
        found = [record for record in records if self._passes(record)]
        for name, descends in reversed(self.order):
            keyed = [(value, record) for record in found if not _is_missing(value := field_value(record, name))]
            missing = [record for record in found if _is_missing(field_value(record, name))]
            keyed.sort(key=lambda pair: _sort_key(pair[0]), reverse=descends)
            found = [record for _, record in keyed] + missing
        return found[: self.limit]

    def _passes(self, record: RunRecord) -> bool:
        if self.since is not None and (record.active_at is None or record.active_at < self.since):
            return False
        if self.before is not None:
            launched = record.time("launched_at")
            if launched is None or launched >= self.before:
                return False
        return query_matches(self.node, lambda leaf: _holds(leaf, record))


def parse_search(text: str, now: float | None = None) -> Search:
    """The search that a query describes. Raises QueryError."""
    now = time.time() if now is None else now
    node = parse_query(text)
    parts = node.parts if isinstance(node, And) else (node,)
    kept: list[Node] = []
    given: dict[str, list[FieldCondition]] = {}
    for part in parts:
        inside = [leaf for leaf in leaves(part) if isinstance(leaf, FieldCondition)]
        directives = [leaf for leaf in inside if leaf.field in DIRECTIVES]
        if not directives:
            kept.append(part)
            continue
        first = directives[0]
        is_one = isinstance(part, FieldCondition) or (
            isinstance(part, Or) and len({leaf.field for leaf in inside}) == 1
        )
        if not is_one or any(leaf.operator not in (":", "=") for leaf in directives):
            raise QueryError(f"write {first.field}:VALUE by itself, outside parentheses, 'or' and 'not'", first.column)
        if first.field in given:
            raise QueryError(f"{first.field} is given twice", first.column)
        given[first.field] = directives
    columns = {leaf.field: leaf.column for part in kept for leaf in leaves(part) if isinstance(leaf, FieldCondition)}
    order = tuple((one.value.lstrip("-"), one.value.startswith("-")) for one in given.get("sort", ()))
    columns |= {one.value.lstrip("-"): one.value_column for one in given.get("sort", ())}
    return Search(
        all_of(kept) if kept else EVERYTHING,
        _moment(given["since"][0], now) if "since" in given else None,
        _moment(given["before"][0], now) if "before" in given else None,
        order or Search.order,
        _limit(given["limit"][0]) if "limit" in given else None,
        columns,
    )


def moment(text: str, now: float) -> float | None:
    """The time that ``7d`` or ``2026-11-01`` means, in seconds since the epoch; None if it is neither."""
    if (span := _SPAN.fullmatch(text)) is not None:
        return now - float(span[1]) * UNITS[span[2]]
    try:
        return datetime.fromisoformat(text).timestamp()  # in local time, unless it names a zone
    except (ValueError, OverflowError, OSError):
        return None


def _moment(comparison: FieldCondition, now: float) -> float:
    if (found := moment(comparison.value, now)) is None:
        raise QueryError("expected a time span such as 7d, 12h or 30m, or a date such as 2026-11-01",
                         comparison.value_column)  # fmt: skip
    return found


def _limit(comparison: FieldCondition) -> int:
    if not comparison.value.isdecimal() or not int(comparison.value):
        raise QueryError("expected a number of runs", comparison.value_column)
    return int(comparison.value)


def _holds(leaf: Leaf, record: RunRecord) -> bool:
    if isinstance(leaf, FieldCondition):
        return meets(leaf, field_value(record, leaf.field))
    words = (record.name, record.state, record.box, record.summary.get("note") or "", field_value(record, "task") or "")
    return leaf.text.lower() in " ".join(map(str, words)).lower()


def _is_known(name: str, records: Sequence[RunRecord]) -> bool:
    if name in FIELDS or name in ALIASES or name in ALWAYS:
        return True
    key = name.removeprefix("cfg.")
    return any(field_value(record, name) is not None or key in record.config for record in records)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _sort_key(value: Any) -> tuple[bool, Any]:
    return (True, value.lower()) if isinstance(value, str) else (False, value)
