"""``grpo-train history``: find runs of a root by what they were and what came of them."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from grpo_train.cli.options import AsJson, Root
from grpo_train.cli.output import table
from grpo_train.run_dir import resolve_root

if TYPE_CHECKING:
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
    root: Root = None,
) -> None:
    """Find runs of a root by state, metrics, config keys, evaluations and time."""
    from grpo_train.history.database import Database, HistoryError
    from grpo_train.history.news import refresh

    folder = resolve_root(root)
    database = Database(_cache_of(folder))
    try:
        problems = refresh(database, folder, "")
    except HistoryError as error:
        if error.code != "damaged":
            raise
        print(f"warning: {error}", file=sys.stderr)
        problems = refresh(database, folder, "")
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    _answer(database.records(), query or [], columns, as_json, as_csv, folder)
    if problems:
        raise typer.Exit(3)


def _answer(records: list[Record], words: list[str], columns: str, as_json: bool, as_csv: bool, folder: Path) -> None:
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
        print(f"no runs match under {folder}" if words else f"no runs under {folder}")
    else:
        table(names, listing.cells(found, names))


def _cache_of(root: Path) -> Path:
    """The file of records of a root, in the user's cache directory."""
    import platformdirs

    name = hashlib.sha256(str(root).encode(errors="surrogateescape")).hexdigest()[:16]
    return Path(platformdirs.user_cache_dir("grpo-train")) / f"history-{name}.sqlite"
