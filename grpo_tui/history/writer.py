"""Writes what the app hears from a box to the history, in a thread: the app never waits for it, and its trouble costs
the history only."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.history.stores import StorePages
from remote.boxes import Box

if TYPE_CHECKING:
    from grpo_train.history.database import Database, News

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
        """Identity to the state in which everything about it was read, see :func:`mark`."""
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
            signature=mark(row),
        )
        if news is None:
            return []
        self._whole[news.identity] = mark(row)
        return [news]

    def _news(self, name: str, **known: Any) -> list[News]:
        """News of a run that the list has."""
        from grpo_train.history.database import News
        from grpo_train.history.record import metrics_of

        identity = self._rows.get(name, {}).get("identity")
        if not identity:
            return []
        if "metrics" in known:
            known["metrics"] = metrics_of(known["metrics"])
        return [News(identity, self._box.name, self._box.root, name, **known)]

    def _find_due(self) -> None:
        waiting = set(self.due)
        for name, row in self._rows.items():
            identity = row.get("identity")
            if identity and row.get("state") in OVER and self._whole.get(identity) != mark(row) and name not in waiting:
                self.due.append(name)


def mark(row: Mapping[str, Any]) -> str:
    """What changes when a run was resumed, or has ended."""
    return f"{row.get('state')} {row.get('started_at')} {row.get('step')}"
