"""``grpo-train history``: find runs of a root by what they were and what came of them."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_train.cli.options import AsJson, Root
from grpo_train.cli.output import table
from grpo_train.run_dir import resolve_root

if TYPE_CHECKING:
    from grpo_train.history.database import Database
    from grpo_train.history.record import Record

EPILOG = (
    "Example: grpo-train history 'task:gsm8k eval.accuracy>0.6 since:30d sort:-reward' (docs/history.md). "
    "Exit codes: 0 done, 1 failed, 2 usage error, 3 done, but some runs could not be read."
)


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
        bool, typer.Option("--records", help="Print whole records as JSON, as grpo-tui history rebuild reads them.")
    ] = False,
    root: Root = None,
) -> None:
    """Find runs of a root, or of the backups in a destination, by state, metrics, config keys, evaluations and time."""
    from grpo_train.history.news import plain_news

    folder = resolve_root(root)
    database, problems = _of_store(source, folder) if source is not None else _of_root(folder)
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    if records:
        print(json.dumps([plain_news(record) for record in database.records()]))
    else:
        where = f"in {source}" if source is not None else f"under {folder}"
        _answer(database.records(), query or [], columns, as_json, as_csv, where)
    if problems:
        raise typer.Exit(3)


def _of_root(folder: Path) -> tuple[Database, list[str]]:
    """The runs of a root, and those that cannot be read."""
    from grpo_train.history.database import Database
    from grpo_train.history.news import refresh

    database = Database(_cache_of(str(folder)))
    return database, _twice(lambda: refresh(database, folder, ""))


def _of_store(name: str, folder: Path) -> tuple[Database, list[str]]:
    """The runs in the backups of a destination, and those that cannot be read. Raises UserError."""
    from grpo_train.backup.past import read_store, root_of
    from grpo_train.cli.transfer import opened
    from grpo_train.history.database import Database

    to = opened(name, folder, write=False)
    database = Database(_cache_of(root_of(to.store)))
    return database, _twice(lambda: read_store(database, to.store, to.name))


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


def _answer(records: list[Record], words: list[str], columns: str, as_json: bool, as_csv: bool, where: str) -> None:
    """Print what a query finds, or everything about one run. Raises UserError."""
    from grpo_train.history import listing

    if words[:1] == ["show"] and len(words) == 2:
        record = listing.one_of(records, words[1])
        print(json.dumps(listing.facts_of(record), indent=1) if as_json else "\n".join(listing.lines_of(record)))
        return
    found, names = listing.find(records, " ".join(words), columns)
    if as_json:
        print(listing.to_json(found, names))
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
