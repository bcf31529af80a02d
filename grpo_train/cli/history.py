"""``grpo-train history``: find runs of a root by what they were and what came of them."""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from grpo_train.cli.options import AsJson, Root
from grpo_train.cli.output import fail, table
from grpo_train.run_dir import existing_root, resolve_root
from grpo_train.run_dir.clock import CLOCK

if TYPE_CHECKING:
    from grpo_train.history.database import Database
    from grpo_train.history.record import RunRecord

EPILOG = (
    "Example: grpo-train history 'task:gsm8k eval.accuracy>0.6 since:30d sort:-reward' (docs/history.md). "
    "Exit codes: 0 done, 1 failed, 2 usage error, 3 done, but some runs could not be read."
)

PAGE_BYTES = 1 << 20
"""Of the records that ``--records`` prints at once; a single larger record is printed alone."""
RECORDS_S = 100.0
"""Time in which ``--records`` reads runs that are new in a store: its caller waits for an answer, and asks again."""


def history(
    query: Annotated[
        list[str] | None,
        typer.Argument(help="Conditions on fields (none = every run), or: show RUN, everything about one run."),
    ] = None,
    columns: Annotated[str, typer.Option(help="Fields to show, separated by commas.")] = "",
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    source: Annotated[
        str | None, typer.Option("--from", help="Runs in the backups of this destination instead of a root.")
    ] = None,
    records: Annotated[
        bool, typer.Option("--records", help="Print whole records as JSON, in pages, as grpo-tui reads them.")
    ] = False,
    after: Annotated[
        str | None, typer.Option(metavar="IDENTITY", help="With --records: the page after this run; nothing is read.")
    ] = None,
    root: Root = None,
) -> None:
    """Find runs of a root, or of the backups in a destination, by state, metrics, config keys, evaluations and time."""
    from grpo_train.cli.transfer import failing

    if after is not None and not records:
        fail("--after needs --records", 2)
    if as_csv and as_json:
        fail("--json and --csv exclude each other", 2)
    folder = existing_root(root) if source is None else resolve_root(root)
    with failing(True) if records else nullcontext():
        read = after is None
        limit_s = RECORDS_S if records else math.inf
        found = _of_root(folder, read) if source is None else _of_store(source, folder, read, limit_s)
        for problem in found.problems:
            print(f"warning: {problem}", file=sys.stderr)
        if not found.complete:
            print(f"warning: stopped after {RECORDS_S:.0f} s; rerun to continue", file=sys.stderr)
        if records:
            print(json.dumps(_page(found, after or "")))
    if not records:
        where = f"in {source}" if source is not None else f"under {folder}"
        _answer(found.database.records(), query or [], columns, as_json, as_csv, where)
    if found.problems or not found.complete:
        raise typer.Exit(3)


@dataclass
class _Found:
    """Records that were brought up to date."""

    database: Database
    problems: list[str]
    """Runs that cannot be read, with the reason."""
    complete: bool = True
    """Whether there was time for all runs."""


def _page(found: _Found, after: str) -> dict[str, Any]:
    """The records after an identity, as far as they fit into a page.

    ``next`` is the ``--after`` of the next page, "" at the end; ``count`` is the number of all records.
    """
    from grpo_train.history.news import plain_news

    every = sorted(found.database.records(), key=lambda record: record.identity)
    rows: list[dict[str, Any]] = []
    left, size = [record for record in every if record.identity > after], 0
    for record in left:
        row = plain_news(record)
        size += len(json.dumps(row))
        if rows and size > PAGE_BYTES:
            break
        rows.append(row)
    following = rows[-1]["identity"] if len(rows) < len(left) else ""
    return {
        "records": rows, "next": following, "count": len(every),
        "complete": found.complete, "problems": found.problems,
    }  # fmt: skip


def _of_root(folder: Path, read: bool) -> _Found:
    """The runs of a root; ``read``: bring them up to date."""
    from grpo_train.history.database import Database
    from grpo_train.history.news import refresh

    database = Database(_cache_of(str(folder)))
    return _Found(database, _twice(lambda: refresh(database, folder, "")) if read else [])


def _of_store(name: str, folder: Path, read: bool, limit_s: float) -> _Found:
    """The runs in the backups of a destination; ``read``: bring them up to date, for ``limit_s``. Raises UserError."""
    from grpo_train.backup.peek import read_store, root_of
    from grpo_train.cli.transfer import opened
    from grpo_train.history.database import Database

    to = opened(name, folder, write=False)
    found = _Found(Database(_cache_of(root_of(to.store))), [])
    if read:
        until = CLOCK.monotonic() + limit_s

        def read_all() -> list[str]:
            problems, found.complete = read_store(found.database, to.store, to.name, until, CLOCK)
            return problems

        found.problems = _twice(read_all)
    return found


def _twice(read: Callable[[], list[str]]) -> list[str]:
    """Read again what a damaged file of records, which is moved aside, was about."""
    from grpo_train.history.database import HistoryError

    try:
        return read()
    except HistoryError as error:
        if error.code != "damaged":
            raise
        print(f"warning: {error}", file=sys.stderr)
        return read()


def _answer(records: list[RunRecord], words: list[str], columns: str, as_json: bool, as_csv: bool, where: str) -> None:
    """Print what a query finds, or everything about one run. Raises UserError."""
    from grpo_train.history import listing

    if words[:1] == ["show"] and len(words) == 2:
        record = listing.one_of(records, words[1])
        print(json.dumps(listing.facts_of(record), indent=1) if as_json else "\n".join(listing.record_lines(record)))
        return
    found, names = listing.find(records, " ".join(words), columns)
    if as_json:
        print(listing.listing_json(found, names))
    elif as_csv:
        print(listing.to_csv(found, names), end="")
    elif not found:
        print(f"no runs match {where}" if words else f"no runs {where}")
    else:
        table(names, listing.cells(found, names))


def _cache_of(root: str) -> Path:
    """The file of records of a root or a store, in the user's cache directory."""
    import platformdirs

    name = hashlib.sha256(root.encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("grpo-train")) / f"history-{name}.sqlite"
