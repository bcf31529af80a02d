"""What a query found, as JSON, CSV or cells of a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from grpo_train.history.fields import DEFAULT, FIELDS, field_text, field_value, plain_value
from grpo_train.history.query import QueryError
from grpo_train.history.record import RunRecord
from grpo_train.history.search import Search, parse_search
from grpo_train.run_dir.display import fraction
from grpo_train.run_dir.errors import UserError, nearest


def find(records: Sequence[RunRecord], query: str, columns: str = "") -> tuple[list[RunRecord], list[str]]:
    """The records that a query finds, and the columns to show: those given, separated by commas, else the default ones
    and those that the query names. Raises UserError (``bad_query``) that points to the mistake."""
    given = [name.strip() for name in columns.split(",") if name.strip()]
    try:
        search: Search = parse_search(query)
        found = search.find(records, given)
    except QueryError as error:
        where = f"\n  {query}\n  {' ' * error.column}^" if query and error.column <= len(query) else ""
        raise UserError(f"{error.message}{where}", code="bad_query") from error
    if given:
        return found, given
    named = [name for name in search.columns if name not in DEFAULT]
    return found, [name for name in (*DEFAULT, *named) if _has_any(found, name)]


def _has_any(records: Sequence[RunRecord], name: str) -> bool:
    return name in ("name", "state") or any(field_value(record, name) is not None for record in records)


def cells(records: Sequence[RunRecord], columns: Sequence[str]) -> list[list[str]]:
    """The texts of a table."""
    return [[field_text(record, name) for name in columns] for record in records]


def listing_json(records: Sequence[RunRecord], columns: Sequence[str]) -> str:
    """A list of objects with the values of the columns, and the identity."""
    rows = [{"identity": one.identity, **{name: plain_value(one, name) for name in columns}} for one in records]
    return json.dumps(rows, indent=1, ensure_ascii=False)


def to_csv(records: Sequence[RunRecord], columns: Sequence[str]) -> str:
    """A header and a line per record; a text that a spreadsheet would take for a formula begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([_harmless(plain_value(record, name)) for name in columns] for record in records)
    return out.getvalue()


def one_of(records: Sequence[RunRecord], name: str) -> RunRecord:
    """The run with this name, or identity or its beginning. Raises UserError (``no_run``)."""
    found = [record for record in records if record.name == name]
    found = found or [record for record in records if len(name) >= 4 and record.identity.startswith(name)]
    if len(found) == 1:
        return found[0]
    if found:
        places = ", ".join(f"{record.identity} ({record.box})" for record in found)
        raise UserError(f"{len(found)} runs are named '{name}'; give an identity: {places}", code="no_run")
    near = nearest(name, [record.name for record in records])
    hint = f"; did you mean {near}?" if near else ""
    raise UserError(f"no run named '{name}' in the history{hint}", code="no_run")


def facts_of(record: RunRecord) -> dict[str, Any]:
    """Everything that is kept of a run, as JSON."""
    return {
        **{name: plain_value(record, name) for name in FIELDS},
        "config": record.config,
        "metrics": {
            name: {"last": last, "min": low, "max": high} for name, (last, low, high) in record.metrics.items()
        },
        "evaluations": record.evaluations,
        "events": record.events,
        "ran": [{"box": box, "start": start, "end": end} for box, start, end in record.ran],
    }  # fmt: skip


def record_lines(record: RunRecord) -> list[str]:
    """The same for people."""
    lines = [f"{name:<20} {text}" for name in FIELDS if (text := field_text(record, name))]
    for one in record.evaluations:
        for row in one["rows"]:
            interval = (
                f" [{fraction(row['ci_low'])}, {fraction(row['ci_high'])}]"
                if {"ci_low", "ci_high"} <= row.keys()
                else ""
            )
            lines.append(
                f"{'evaluation':<20} {one['dataset']} step {row['step']:.0f}  {fraction(row['accuracy'])}{interval}"
            )
    lines += [f"{'event':<20} {event.get('time', '')[:19]}  {event['event']}" for event in record.events]
    lines += [f"{'cfg.' + key:<40} {value}" for key, value in record.config.items()]
    return lines


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
