"""Reads every run of boxes and roots into the history again."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.history.database import Database
from grpo_train.history.news import news_of, read_root
from grpo_train.run_dir.errors import UserError
from grpo_tui.history.stores import rebuild_box_stores
from grpo_tui.history.writer import mark
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
    """Read a root of this machine; returns the runs that cannot be read, with the reason. Raises UserError."""
    if not (root / "training_runs").is_dir():
        raise UserError(f"{root}: no training_runs in this directory", code="bad_root")
    return read_root(database, root, box)


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
                signature=mark(answer["summary"]),
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
