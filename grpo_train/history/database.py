"""The file of records: one SQLite database, a cache that can be rebuilt. Any number of programs may use it at once."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpo_train.history.cost import Prices
from grpo_train.history.record import RunRecord
from grpo_train.history.spans import Span, joined
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import stat_of

VERSION = 1
"""Of the file. One of another version is made anew."""
BUSY_S = 20.0
GAP_S = 300.0
"""A box that was heard of before and after so short a gap was up in it."""
_TABLES = """
CREATE TABLE boxes (name TEXT PRIMARY KEY, root TEXT, heard_at REAL);
CREATE TABLE runs (
    identity TEXT PRIMARY KEY, box TEXT, root TEXT, name TEXT, updated_at TEXT, summary TEXT, config TEXT, metrics TEXT,
    evaluations TEXT, events TEXT, backup TEXT, parent TEXT, signature TEXT);
CREATE TABLE configs (hash TEXT PRIMARY KEY, json TEXT);
CREATE TABLE hours (identity TEXT, box TEXT, start REAL, stop REAL, PRIMARY KEY (identity, start)) WITHOUT ROWID;
CREATE TABLE evaluated (
    box TEXT, identity TEXT, dataset TEXT, start REAL, stop REAL, PRIMARY KEY (box, identity, dataset, start))
    WITHOUT ROWID;
CREATE TABLE up (box TEXT, start REAL, stop REAL, PRIMARY KEY (box, start)) WITHOUT ROWID;
CREATE TABLE prices (box TEXT, since REAL, per_hour REAL, PRIMARY KEY (box, since)) WITHOUT ROWID;
"""


class HistoryError(UserError):
    """The file of records cannot be used; the message names it."""

    code = "bad_history"


@dataclass
class News:
    """What was heard of one run. None = nothing new."""

    identity: str
    box: str
    root: str
    name: str
    summary: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None
    metrics: Mapping[str, Any] | None = None
    evaluations: Sequence[Mapping[str, Any]] | None = None
    events: Sequence[Mapping[str, Any]] | None = None
    backup: str | None = None
    parent: str | None = None
    spans: Sequence[Span] | None = None
    signature: str | None = None
    """Of the files that it was read from."""
    evaluated: Mapping[str, Span] = field(default_factory=dict)
    """Dataset to the time of its newest evaluation."""


class Database:
    """The file. Every method raises HistoryError where it cannot be used; a damaged one was moved aside then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.moved_to: Path | None = None
        """Where a damaged file was moved to."""

    # writing -------------------------------------------------------------------------------------------------

    def write(self, news: Iterable[News]) -> None:
        """Keep what was heard of some runs, all or nothing."""
        with self._transaction() as file:
            for one in news:
                _write_run(file, one)

    def box_heard(self, box: str, root: str, prices: Mapping[float, float], now: float) -> None:
        """A box of boxes.yaml was heard of. Its prices replace what was kept of them: without dates, a price that
        changed holds from now on."""
        with self._transaction() as file:
            file.execute("REPLACE INTO boxes VALUES (?, ?, ?)", (box, root, now))
            known = dict(file.execute("SELECT since, per_hour FROM prices WHERE box = ? ORDER BY since", (box,)))
            if len(prices) == 1 and known:
                (per_hour,) = prices.values()
                prices = known if list(known.values())[-1] == per_hour else {**known, now: per_hour}
            if prices and prices != known:
                file.execute("DELETE FROM prices WHERE box = ?", (box,))
                file.executemany("INSERT INTO prices VALUES (?, ?, ?)", ((box, *each) for each in prices.items()))

    def box_up(self, box: str, span: Span) -> None:
        """A box was up in a span of time."""
        with self._transaction() as file:
            near = (box, span[1] + GAP_S, span[0] - GAP_S)
            touching = file.execute(
                "SELECT start, stop FROM up WHERE box = ? AND start <= ? AND stop >= ?", near
            ).fetchall()
            file.executemany("DELETE FROM up WHERE box = ? AND start = ?", ((box, start) for start, _ in touching))
            starts, ends = zip(span, *touching, strict=True)
            file.execute("INSERT INTO up VALUES (?, ?, ?)", (box, min(starts), max(ends)))

    def forget_missing(self, box: str, root: str, kept: Iterable[str]) -> None:
        """Forget the runs of a root whose identity is not among those that it has."""
        with self._transaction() as file:
            known = [
                one for (one,) in file.execute("SELECT identity FROM runs WHERE box = ? AND root = ?", (box, root))
            ]
            for identity in set(known) - set(kept):
                for table in ("runs", "hours", "evaluated"):
                    file.execute(f"DELETE FROM {table} WHERE identity = ?", (identity,))

    # reading -------------------------------------------------------------------------------------------------

    def records(self) -> list[RunRecord]:
        """Every run."""
        with self._reading() as file:
            prices = _prices(file)
            spans: dict[str, list[tuple[str, float, float]]] = {}
            for identity, *span in file.execute("SELECT identity, box, start, stop FROM hours ORDER BY start"):
                spans.setdefault(identity, []).append((span[0], span[1], span[2]))
            rows = file.execute(
                "SELECT identity, box, root, name, summary, json, metrics, evaluations, events, backup, parent "
                "FROM runs LEFT JOIN configs ON configs.hash = runs.config"
            ).fetchall()
        return [
            RunRecord(
                identity, box, root, name, json.loads(summary or "{}"), config or "", metrics or "", evaluations or "",
                events or "", backup or "", parent or "", spans.get(identity, ()), prices,
            )
            for identity, box, root, name, summary, config, metrics, evaluations, events, backup, parent in rows
        ]  # fmt: skip

    def signatures(self, box: str, root: str) -> dict[str, str]:
        """Run name to what its files were like when it was read."""
        with self._reading() as file:
            rows = "SELECT name, signature FROM runs WHERE box = ? AND root = ?"
            return {name: signature or "" for name, signature in file.execute(rows, (box, root))}

    def identities(self, box: str, root: str) -> dict[str, str]:
        """Run name to identity."""
        with self._reading() as file:
            rows = "SELECT name, identity FROM runs WHERE box = ? AND root = ?"
            return dict(file.execute(rows, (box, root)).fetchall())

    def ups(self) -> dict[str, list[Span]]:
        """Box to the spans in which it is known to have been up."""
        with self._reading() as file:
            found: dict[str, list[Span]] = {}
            for box, start, stop in file.execute("SELECT box, start, stop FROM up"):
                found.setdefault(box, []).append((start, stop))
        return {box: joined(spans) for box, spans in found.items()}

    def evaluated(self) -> list[tuple[str, str, str, float, float]]:
        """Box, run identity, dataset, begin and end of each evaluation."""
        with self._reading() as file:
            return file.execute("SELECT box, identity, dataset, start, stop FROM evaluated ORDER BY start").fetchall()

    def prices(self) -> dict[str, Prices]:
        """By box."""
        with self._reading() as file:
            return _prices(file)

    # the file ------------------------------------------------------------------------------------------------

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._guarded(), closing(self._open()) as file:
            yield file

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._guarded(), closing(self._open()) as file, file:
            file.execute("BEGIN IMMEDIATE")
            yield file

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        inode = _inode(self.path)
        try:
            yield
        except sqlite3.OperationalError as error:  # a full disk; another process that writes for BUSY_S
            raise HistoryError(
                f"{self.path}: {error}", code="busy" if "locked" in str(error) else "bad_history"
            ) from error
        except sqlite3.DatabaseError as error:
            self._move_aside(inode)
            where = f"; moved to {self.moved_to}" if self.moved_to else ""
            raise HistoryError(f"{self.path} is damaged ({error}){where}", code="damaged") from error
        except OSError as error:
            raise HistoryError(f"{self.path}: {error.strerror or error}") from error

    def _open(self) -> sqlite3.Connection:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            if file.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                _make_tables(file)
                self.path.chmod(0o600)
            file.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            file.close()
            raise
        return file

    def _move_aside(self, inode: int | None) -> None:
        """Move a damaged file aside, unless another program has done so."""
        if inode is None or _inode(self.path) != inode:
            return
        aside = self.path.with_name(f"{self.path.name}.damaged-{time.time_ns()}")
        with suppress(OSError):  # another process has just moved it
            self.path.rename(aside)
            self.moved_to = aside
            for suffix in ("-wal", "-shm"):  # they belong to the damaged file
                self.path.with_name(self.path.name + suffix).unlink(missing_ok=True)


def _inode(path: Path) -> int | None:
    facts = stat_of(path)
    return facts.st_ino if facts else None


def _make_tables(file: sqlite3.Connection) -> None:
    file.execute("PRAGMA journal_mode = WAL")
    file.execute("BEGIN IMMEDIATE")  # another program may make them at the same time
    with file:
        if file.execute("PRAGMA user_version").fetchone()[0] == VERSION:
            return
        for (table,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            file.execute(f'DROP TABLE "{table}"')
        for statement in _TABLES.split(";"):
            file.execute(statement)
        file.execute(f"PRAGMA user_version = {VERSION}")


def _prices(file: sqlite3.Connection) -> dict[str, Prices]:
    found: dict[str, dict[float, float]] = {}
    for box, since, per_hour in file.execute("SELECT box, since, per_hour FROM prices"):
        found.setdefault(box, {})[since] = per_hour
    return {box: prices for box, steps in found.items() if (prices := Prices.of(steps)) is not None}


def _write_run(file: sqlite3.Connection, news: News) -> None:
    known = file.execute(
        "SELECT box, root, updated_at, summary FROM runs WHERE identity = ?", (news.identity,)
    ).fetchone()
    updated_at = str((news.summary or {}).get("updated_at") or "")
    if known is None:
        insert = "INSERT INTO runs (identity, box, root, name) VALUES (?, ?, ?, ?)"
        file.execute(insert, (news.identity, news.box, news.root, news.name))
    elif known[:2] != (news.box, news.root) and _is_older(news, known[1], updated_at, known[2] or ""):
        return
    if known is not None and news.summary is not None:
        news = replace(news, summary=_with_verdict(news.summary, json.loads(known[3] or "{}")))
    texts = {
        key: None if (value := getattr(news, key)) is None else json.dumps(value, ensure_ascii=False)
        for key in ("summary", "metrics", "evaluations", "events")
    }
    fields: dict[str, Any] = {
        "box": news.box, "root": news.root, "name": news.name, **texts, "backup": news.backup, "parent": news.parent,
        "signature": news.signature, "updated_at": updated_at or None,
    }  # fmt: skip
    if news.config is not None:
        text = json.dumps(news.config, ensure_ascii=False, sort_keys=True)
        fields["config"] = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
        file.execute("INSERT OR IGNORE INTO configs VALUES (?, ?)", (fields["config"], text))
    given = {key: value for key, value in fields.items() if value is not None}
    assignments = ", ".join(f"{key} = ?" for key in given)
    file.execute(f"UPDATE runs SET {assignments} WHERE identity = ?", (*given.values(), news.identity))
    if news.spans is not None:
        _write_spans(file, news)
    for dataset, (start, stop) in news.evaluated.items():
        of = (news.identity, dataset, start)
        copied = "SELECT 1 FROM evaluated WHERE identity = ? AND dataset = ? AND start = ? AND box != ?"
        if file.execute(copied, (*of, news.box)).fetchone() is None:
            file.execute("REPLACE INTO evaluated VALUES (?, ?, ?, ?, ?)", (news.box, *of, stop))


def _with_verdict(summary: Mapping[str, Any], known: Mapping[str, Any]) -> Mapping[str, Any]:
    """A summary with the verdict that is known of the same steps: a list is sent before its verdicts are made."""
    same = all(summary.get(key) == known.get(key) for key in ("state", "step", "started_at"))
    return {"verdict": known["verdict"], **summary} if same and "verdict" in known else summary


def _is_older(news: News, known_root: str, updated_at: str, known_at: str) -> bool:
    """Whether what was heard of a copy of a run is older than what is known; a backup never takes a box's place."""
    if is_store(news.root) != is_store(known_root):
        return is_store(news.root)
    return news.summary is None or updated_at < known_at


def is_store(root: str) -> bool:
    """Whether the root of a record is a store of backups: a URL."""
    return "://" in root


def _write_spans(file: sqlite3.Connection, news: News) -> None:
    """A run's spans: those that another box was heard with first stay with that box."""
    rows = file.execute("SELECT start, stop FROM hours WHERE identity = ? AND box != ?", (news.identity, news.box))
    others: list[Span] = rows.fetchall()
    file.execute("DELETE FROM hours WHERE identity = ? AND box = ?", (news.identity, news.box))
    for start, stop in news.spans or ():
        shared = max((min(stop, end) - max(start, begin) for begin, end in others), default=0.0)
        if shared <= (stop - start) / 2:
            file.execute("REPLACE INTO hours VALUES (?, ?, ?, ?)", (news.identity, news.box, start, stop))
