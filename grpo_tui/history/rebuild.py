"""Reads every run of boxes and roots into the history again."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from grpo_train.history.database import Database
from grpo_train.history.news import news_of, read_root
from grpo_train.run_dir.errors import UserError
from grpo_tui.history.stores import rebuild_box_stores
from grpo_tui.history.writer import mark
from remote.boxes import Box
from remote.events import ClientEvent, HostKeyAsked, Link, LinkChanged, QuestionAsked
from remote.protocol import RemoteError

CONNECT_S = 40.0
AT_ONCE = 4
"""Runs that are asked about at the same time."""
BATCH = 50
"""Runs that are written at once."""
REPLY_S = 120.0


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
    client = _Connected(box)
    try:
        database.box_heard(box.name, box.root, box.dated_prices(), time.time())
        rows: list[dict[str, Any]] = client.request("list_runs").result()["runs"]
        facts = client.request("box_facts").result()
        if (uptime := facts.get("uptime_s")) is not None:
            database.box_up(box.name, (time.time() - uptime, time.time()))
        count, problems = _read_runs(database, box, client, [row for row in rows if row.get("identity")], say)
        return count, problems + rebuild_box_stores(database, client.ask, say)
    except RemoteError as error:
        raise UserError(f"{box.name}: {error.message}", code=error.code) from error
    finally:
        client.close()


def _read_runs(
    database: Database, box: Box, client: _Connected, rows: Iterable[dict[str, Any]], say: Callable[[str], None]
) -> tuple[int, list[str]]:
    count, problems, batch = 0, [], []
    asked: deque[tuple[str, Future[dict[str, Any]], Future[dict[str, Any]]]] = deque()
    waiting = deque(row["run"] for row in rows)
    total = len(waiting)
    while waiting or asked:
        while waiting and len(asked) < AT_ONCE:
            run = waiting.popleft()
            asked.append((run, client.request("show_run", run=run), client.request("metrics", run=run)))
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


class _Connected:
    """A client whose link stands. Raises UserError when it does not within CONNECT_S, or asks for a person."""

    def __init__(self, box: Box) -> None:
        from remote.client import BoxClient

        self._box, self._said, self._why = box, threading.Event(), ""
        self._client = BoxClient(box, self._take)
        self._client.start()
        if not self._said.wait(CONNECT_S) or self._why:
            self._client.close()
            raise UserError(f"{box.name}: {self._why or 'not reached'}", code="unreachable")

    def request(self, op: str, **params: Any) -> Future[dict[str, Any]]:
        return self._client.request(op, REPLY_S, **params)

    def ask(self, op: str, wait_s: float, **params: Any) -> dict[str, Any]:
        """The reply to a request. Raises RemoteError."""
        return self._client.request(op, wait_s, **params).result()

    def close(self) -> None:
        self._client.close()

    def _take(self, event: ClientEvent) -> None:
        if isinstance(event, LinkChanged) and event.state is Link.CONNECTED:
            self._said.set()
        elif isinstance(event, LinkChanged) and event.state in (Link.LOST, Link.REFUSED):
            self._why = self._why or event.detail
            self._said.set()
        elif isinstance(event, (HostKeyAsked, QuestionAsked)):
            self._why = f"asks for a person: connect once with  grpo-tui --box {self._box.name}"
            self._said.set()
