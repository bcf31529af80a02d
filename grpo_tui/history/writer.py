"""Writes what the app hears from a box, and the runs that are in backups, to the history."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.box.asking import ENGINE_S
from remote.boxes import Box
from remote.protocol import RemoteError
from remote.protocol.rows import UNREADABLE

if TYPE_CHECKING:
    from grpo_train.history.database import Database, News

DESCRIBE_S = 60.0
READ_S = 3600.0
"""The engine gives up on a store that does not answer after 10 minutes; many runs take longer."""
WITHOUT_BACKUPS = ("no_engine", "old_engine")
"""Codes of a box that has no backups, as its engine is missing or does not know them."""


class StorePages:
    """The pages of a destination: what to ask next, from the answers so far."""

    def __init__(self, source: str) -> None:
        self._source = source
        self.params: dict[str, Any] | None = {"source": source}
        """Of the next ``stored_history`` request; None = all pages were answered."""
        self.problems: list[str] = []
        """What could not be read, with the reason."""
        self.identities: set[str] = set()
        """Of the runs that were read."""
        self._known = -1.0

    def take(self, page: Mapping[str, Any]) -> list[News]:
        """Take the answer to ``params``; returns its news. Raises KeyError, TypeError for something else.

        While the engine has no time for all runs of the store, and reads some each time, it is asked for more.
        """
        news = self._news(page["records"])
        self.identities.update(one.identity for one in news)
        if not page["complete"] and page["count"] > self._known:
            self._known = page["count"]
            return news
        self.problems += page["problems"]
        if not page["complete"]:
            self.problems.append("not all runs could be read in time")
        known = (self.params or {}).get("after", "")
        self.params = {"source": self._source, "after": page["next"]} if page["next"] > known else None
        return news

    def _news(self, rows: list[Mapping[str, Any]]) -> list[News]:
        from grpo_train.history.database import is_store
        from grpo_train.history.news import news_from

        found = []
        for row in rows:
            try:
                if UNREADABLE in row:
                    raise ValueError(row[UNREADABLE])
                if is_store(str(row["root"])):  # nobody may speak for the root of a box
                    found.append(news_from(row, self._source, str(row["root"])))
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                self.problems.append(f"{row.get('name') or row.get('identity')}: unreadable record ({error})")
        return found


def rebuild_stores(database: Database, say: Callable[[str], None], only: list[str] | None = None) -> list[str]:
    """Read every destination of this machine, or some by name; returns what could not be read, with the reason."""
    try:
        names = only or [str(row["name"]) for row in _ask(["destinations"], DESCRIBE_S)]
    except UserError as error:
        return [f"backups: {error}"]

    def ask(params: Mapping[str, Any]) -> dict[str, Any]:
        after = ["--after", params["after"]] if params.get("after") else []
        return dict(_ask(["history", "--from", params["source"], "--records", *after], READ_S))

    return [problem for name in names for problem in _read(database, name, ask, say)]


def rebuild_box_stores(database: Database, ask: Callable[..., dict[str, Any]], say: Callable[[str], None]) -> list[str]:
    """Read every destination of a box; returns what could not be read, with the reason.

    ``ask``: an operation, the seconds to wait for its reply and its parameters → the reply; raises RemoteError.
    """
    try:
        rows = ask("list_destinations", DESCRIBE_S)["destinations"]
    except RemoteError as error:
        return [] if error.code in WITHOUT_BACKUPS else [f"backups: {error.message}"]
    names = [str(row["name"]) for row in rows if UNREADABLE not in row]

    def ask_page(params: Mapping[str, Any]) -> dict[str, Any]:
        try:
            return ask("stored_history", ENGINE_S, **params)
        except RemoteError as error:
            raise UserError(f"{error.message}; {error.hint}" if error.hint else error.message) from error

    return [problem for name in names for problem in _read(database, name, ask_page, say)]


def _read(
    database: Database, name: str, ask: Callable[[Mapping[str, Any]], dict[str, Any]], say: Callable[[str], None]
) -> list[str]:
    """Read the pages of a destination. Raises HistoryError."""
    pages = StorePages(name)
    while pages.params is not None:
        try:
            news = pages.take(ask(pages.params))
        except UserError as error:
            return [f"backups in {name}: {problem}" for problem in (*pages.problems, error)]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return [f"backups in {name}: the engine printed something unexpected ({error})"]
        database.write(news)
    say(f"backups in {name}: {len(pages.identities)} runs read")
    return [f"backups in {name}: {problem}" for problem in pages.problems]


def _ask(arguments: list[str], wait_s: float) -> Any:
    """What an engine's command prints as JSON. Raises UserError."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "grpo_train.cli", *arguments, "--json"],
            capture_output=True, text=True, errors="replace", timeout=wait_s, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise UserError(f"grpo-train {arguments[0]} did not answer within {wait_s:.0f} s", code="no_answer") from None
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if done.returncode not in (0, 3) or found is None:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        reason = lines[-1].removeprefix("error: ") if lines else f"exit code {done.returncode}"
        raise UserError(reason, code="no_answer")
    return found


OVER = ("finished", "stopped", "crashed", "killed", "lost", "old layout")
RESERVE = 1_000
"""Answers that wait at most: a disk that does not keep up loses answers, not memory."""
WRITTEN = ("runs", "show_run", "metrics", "run_facts", "box_facts", "stored_history")


class HistoryWriter:
    """The history of one box. ``put`` returns at once."""

    def __init__(self, path: Path, box: Box) -> None:
        self._path, self._box = path, box
        self._waiting: queue.Queue[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = queue.Queue()
        self._thread: threading.Thread | None = None
        self._list: Mapping[str, Any] | None = None
        """The newest list of runs, if it is not written yet."""
        self._rows: dict[str, Mapping[str, Any]] = {}
        """Run name to its row of the last list of runs."""
        self._written: dict[str, object] = {}
        """Identity to the row as it was written last."""
        self._whole: dict[str, str] = {}
        """Identity to the state in which everything about it was read, see :func:`change_mark`."""
        self.due: deque[str] = deque()
        """Runs that are over and of which only the row is known."""

    def put(self, op: str, params: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        """Keep an answer of the box, which is not changed afterwards."""
        if op not in WRITTEN or self._waiting.qsize() >= RESERVE:
            return
        if op == "runs":  # only the newest list counts, and a list may have 16 MB
            is_waiting, self._list = self._list is not None, answer
            if is_waiting:
                return
        self._waiting.put((op, params, answer))
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="history", daemon=True)
            self._thread.start()

    def flush(self) -> None:
        """Wait until what was put is written."""
        self._waiting.join()

    def _run(self) -> None:
        from grpo_train.history.database import Database

        database = Database(self._path)
        is_new = True
        while True:
            op, params, answer = self._waiting.get()
            if op == "runs" and self._list is not None:
                answer, self._list = self._list, None
            try:
                if is_new:
                    self._open(database)
                    is_new = False
                self._keep(database, op, params, answer)
            except UserError as error:
                is_new = error.code == "damaged"  # it was moved aside: the next answers make a new one
            except (KeyError, TypeError, ValueError):
                pass  # an answer of an unknown shape costs itself
            finally:
                self._waiting.task_done()

    def _open(self, database: Database) -> None:
        box = self._box
        database.box_heard(box.name, box.root, box.dated_prices(), time.time())
        names = database.signatures(box.name, box.root)
        identities = database.identities(box.name, box.root)
        self._whole = {identities[name]: signature for name, signature in names.items() if name in identities}
        self._written.clear()

    def _keep(self, database: Database, op: str, params: Mapping[str, Any], answer: Mapping[str, Any]) -> None:
        if op == "runs":
            self._rows = {row["run"]: row for row in answer["runs"]}
            database.write(self._changed())
            self._find_due()
        elif op == "show_run":
            database.write(self._shown(answer))
        elif op == "metrics" and answer.get("state") == "whole":
            database.write(self._news(str(params["run"]), metrics=answer["metrics"]))
        elif op == "run_facts" and params.get("config"):
            for row in answer["facts"]:
                database.write(self._news(str(row["run"]), config={**answer["same"], **row.get("config", {})}))
        elif op == "stored_history":
            database.write(StorePages(str(params["source"])).take(answer))
        elif op == "box_facts" and (uptime := answer.get("uptime_s")) is not None:
            now = time.time()
            database.box_up(self._box.name, (now - float(uptime), now))

    def _changed(self) -> list[News]:
        """News of the rows that are not as they were written."""
        from grpo_train.history.news import news_of

        found = []
        for row in self._rows.values():
            news = news_of(self._box.name, self._box.root, row)
            if news is not None and self._written.get(news.identity) != news.summary:
                self._written[news.identity] = news.summary
                found.append(news)
        return found

    def _shown(self, answer: Mapping[str, Any]) -> list[News]:
        from grpo_train.history.news import news_of

        row = answer["summary"]
        news = news_of(
            self._box.name,
            self._box.root,
            row,
            config_text=answer.get("config_text") or None,
            evaluations=[one for one in answer.get("evaluations", ()) if isinstance(one.get("metrics"), list)],
            events=answer.get("events", ()),
            signature=change_mark(row),
        )
        if news is None:
            return []
        self._whole[news.identity] = change_mark(row)
        return [news]

    def _news(self, name: str, **known: Any) -> list[News]:
        """News of a run that the list has."""
        from grpo_train.history.database import News
        from grpo_train.history.record import metric_ends

        identity = self._rows.get(name, {}).get("identity")
        if not identity:
            return []
        if "metrics" in known:
            known["metrics"] = metric_ends(known["metrics"])
        return [News(identity, self._box.name, self._box.root, name, **known)]

    def _find_due(self) -> None:
        waiting = set(self.due)
        for name, row in self._rows.items():
            identity = row.get("identity")
            if (
                identity
                and row.get("state") in OVER
                and self._whole.get(identity) != change_mark(row)
                and name not in waiting
            ):
                self.due.append(name)


def change_mark(row: Mapping[str, Any]) -> str:
    """What changes when a run was resumed, or has ended."""
    return f"{row.get('state')} {row.get('started_at')} {row.get('step')}"
