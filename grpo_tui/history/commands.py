"""``grpo-tui history``, ``history rebuild``, ``cost``: questions about the runs of all boxes, also of gone ones."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.history.database import Database, HistoryError
from grpo_train.history.news import news_of, read_root
from grpo_train.history.record import RunRecord
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.safe_json import noting_left_out
from grpo_tui.history import history_file
from grpo_tui.history.writer import change_mark, rebuild_box_stores
from grpo_tui.shell.connection import REPLY_S, ShellConnection
from remote.boxes import Box
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from remote.client import BoxClient

AT_ONCE = 4
"""Runs that are asked about at the same time."""
BATCH = 50
"""Runs that are written at once."""


def rebuild_root(database: Database, root: Path, box: str) -> list[str]:
    """Read a root of this machine; returns what cannot be read, with the reason. Raises UserError."""
    if not (root / "training_runs").is_dir():
        raise UserError(f"{root}: no training_runs in this directory", code="bad_root")
    with noting_left_out() as left_out:
        problems = read_root(database, root, box)
    return [*problems, *(f"{file} is left out: {reason}" for file, reason in left_out.items())]


def rebuild_box(database: Database, box: Box, say: Callable[[str], None]) -> tuple[int, list[str]]:
    """Ask a box about each of its runs, and about those in the destinations of its backups.

    Returns how many of its runs were read, and what cannot be read with the reason.

    Raises UserError where the box cannot be reached: nothing is asked of a person.
    """
    try:
        connection = ShellConnection(box, has_person=False)
    except RemoteError as error:
        raise UserError(error.message, code=error.code) from error
    client = connection.client
    try:
        database.box_heard(box.name, box.root, box.dated_prices(), time.time())
        rows: list[dict[str, Any]] = connection.request("list_runs")["runs"]
        facts = connection.request("box_facts")
        if (uptime := facts.get("uptime_s")) is not None:
            database.box_up(box.name, (time.time() - uptime, time.time()))
        count, problems = _read_runs(database, box, client, [row for row in rows if row.get("identity")], say)
        return count, problems + rebuild_box_stores(database, connection.request, say)
    except RemoteError as error:
        raise UserError(f"{box.name}: {error.message}", code=error.code) from error
    finally:
        connection.close()


def _read_runs(
    database: Database, box: Box, client: BoxClient, rows: Iterable[dict[str, Any]], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    count, problems, batch = 0, [], []
    asked: deque[tuple[str, Future[dict[str, Any]], Future[dict[str, Any]]]] = deque()
    waiting = deque(row["run"] for row in rows)
    total = len(waiting)
    while waiting or asked:
        while waiting and len(asked) < AT_ONCE:
            run = waiting.popleft()
            asked.append(
                (run, client.request("show_run", REPLY_S, run=run), client.request("metrics", REPLY_S, run=run))
            )
        run, shown, measured = asked.popleft()
        try:
            answer = shown.result()
            news = news_of(
                box.name,
                box.root,
                answer["summary"],
                config_text=answer["config_text"] or None,
                evaluations=[one for one in answer["evaluations"] if isinstance(one.get("metrics"), list)],
                events=answer["events"],
                metrics=_metrics(measured),
                signature=change_mark(answer["summary"]),
            )
        except RemoteError as error:
            problems.append(f"{run}: {error.message}")
            continue
        if news is None:
            problems.append(f"{run}: {(answer['summary'].get('error') or {}).get('summary', 'unreadable')}")
            continue
        batch.append(news)
        count += 1
        if len(batch) == BATCH or not (waiting or asked):
            database.write(batch)
            batch = []
            say(f"{box.name}: {count} of {total} runs")
    database.write(batch)
    return count, problems


def _metrics(asked: Future[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The metrics of a run; None where the box cannot read its log."""
    try:
        reply = asked.result()
    except RemoteError:
        return None
    return list(reply["metrics"]) if reply["state"] == "whole" else None


_HISTORY = """\
examples:
  grpo-tui history 'state:finished reward>0.5'
  grpo-tui history 'task:gsm8k eval.accuracy>0.6 since:30d sort:cost'
  grpo-tui history 'cfg.optimizer.learning_rate>=1e-5 backup:none' --columns name,box,step,cost
  grpo-tui history show run_gsm8k_demo      everything about one run
  grpo-tui history rebuild                  read all boxes of boxes.yaml again, and the backups in their
                                            backup.yaml and in that of this machine
  grpo-tui history rebuild --root ~/runs    read a directory of runs on this machine
  grpo-tui history rebuild --from s3        read the backups in one destination of backup.yaml

Exit codes: 0 done, 1 failed, 2 usage error, 3 done, but some runs or boxes could not be read.
"""


def run(words: list[str]) -> int:
    """Run a command; returns the exit code."""
    arguments = command_parser(words[0]).parse_args(words[1:])
    database = Database(arguments.file or history_file())
    try:
        if words[0] == "cost":
            from grpo_tui.history.spending import print_costs

            return print_costs(database, arguments.since, arguments.by, arguments.json)
        return _history(database, arguments)
    except UserError as error:
        print(f"grpo-tui: {error}", file=sys.stderr)
        return 2 if error.code in ("bad_query", "bad_config", "no_run", "bad_root") else 1
    except BrokenPipeError:
        return 1


def command_parser(command: str) -> argparse.ArgumentParser:
    """The options of a command."""
    options = argparse.ArgumentParser(
        prog=f"grpo-tui {command}",
        epilog=_HISTORY if command == "history" else "Prices come from boxes.yaml (price_per_hour or prices).",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=(
            "Find runs of all boxes, also of boxes that are gone (docs/history.md)."
            if command == "history"
            else "Show what runs, evaluations and idle boxes cost (docs/history.md)."
        ),
    )
    if command == "history":
        options.add_argument("query", nargs="*", metavar="QUERY", help="conditions on fields; none = every run")
        options.add_argument("--columns", default="", help="fields to show, separated by commas")
        options.add_argument("--csv", action="store_true", help="print CSV")
        options.add_argument("--box", action="append", metavar="NAME", help="rebuild: only this box (repeatable)")
        options.add_argument("--root", type=Path, metavar="DIR", help="rebuild: only this directory on this machine")
        options.add_argument("--from", dest="source", metavar="NAME", help="rebuild: only the backups in a destination")
        options.add_argument("--boxes", metavar="FILE", help="rebuild: boxes.yaml to use")
    else:
        options.add_argument("--since", default="", metavar="WHEN", help="a time span (7d, 12h) or a date (2026-11-01)")
        options.add_argument("--by", choices=("run", "box", "day"), default="run", help="what a line is (default: run)")
    options.add_argument("--json", action="store_true", help="print JSON")
    options.add_argument("--file", type=Path, metavar="FILE", help=f"file of records (default: {history_file()})")
    return options


def _history(database: Database, arguments: argparse.Namespace) -> int:
    from grpo_train.history import listing
    from grpo_tui.box.formatting import print_table

    words = arguments.query
    if words == ["rebuild"]:
        return _rebuild(database, arguments)
    records = read_records(database)
    if words[:1] == ["show"] and len(words) == 2:
        record = listing.one_of(records, words[1])
        print(
            json.dumps(listing.facts_of(record), indent=1)
            if arguments.json
            else "\n".join(listing.record_lines(record))
        )
        return 0
    found, names = listing.find(records, " ".join(words), arguments.columns)
    if arguments.json:
        print(listing.listing_json(found, names))
    elif arguments.csv:
        print(listing.to_csv(found, names), end="")
    elif found:
        print_table(names, listing.cells(found, names))
    else:
        print("no runs match" if records else "no runs are known yet; read them with  grpo-tui history rebuild")
    return 0


def read_records(database: Database) -> list[RunRecord]:
    """All records; of a damaged file, those of this machine and of its boxes, read again. Raises HistoryError."""
    try:
        return database.records()
    except HistoryError as error:
        if error.code != "damaged":
            raise
        print(f"grpo-tui: {error}; reading the boxes again", file=sys.stderr)
        _rebuild(database, command_parser("history").parse_args(["rebuild"]))
        return database.records()


def _rebuild(database: Database, arguments: argparse.Namespace) -> int:
    from grpo_tui.history.writer import rebuild_stores
    from remote.boxes import find_box, load_boxes

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    problems: list[str] = []
    if arguments.source is not None:
        problems = rebuild_stores(database, say, [arguments.source])
    elif arguments.root is not None:
        root = arguments.root.expanduser().absolute()
        problems = rebuild_root(database, root, (arguments.box or ["local"])[0])
    else:
        boxes = load_boxes(arguments.boxes)
        if arguments.box:
            boxes = [find_box(boxes, name, arguments.boxes) for name in arguments.box]
        for box in boxes:
            problems += _rebuild_box(database, box, say)
        if not arguments.box:
            problems += rebuild_stores(database, say)
    for problem in problems:
        say(f"warning: {problem}")
    return 3 if problems else 0


def _rebuild_box(database: Database, box: Box, say: Callable[[str], None]) -> list[str]:
    """Read a box; returns what could not be read, with the reason. Raises HistoryError."""
    began = time.monotonic()
    try:
        count, unread = rebuild_box(database, box, say)
    except HistoryError:
        raise
    except UserError as error:
        return [str(error)]
    say(f"{box.name}: {count} runs read in {time.monotonic() - began:.1f} s")
    return [f"{box.name}: {problem}" for problem in unread]
