"""Answers of boxes that this machine keeps: a known run is on the screen before the link stands. No Textual.

What is kept is what passed the gate; it passes the gate again when it is read. The file may be deleted at any time.
"""

from __future__ import annotations

import asyncio
import json
import queue
import sqlite3
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo_tui.box.asking import monotonic
from remote import gate
from remote.boxes import Box
from remote.events import RunsReported
from remote.protocol import RemoteError
from remote.protocol.logs import pack_series

if TYPE_CHECKING:
    from grpo_tui.box.curves import Curves

FILE = "answers.sqlite"
VERSION = 1
"""Of the file. One of another version is made anew."""
MAX_BYTES = 200_000_000
KEPT_SHARE = 0.9
"""Of MAX_BYTES, once it was exceeded; what was not used for the longest time goes first."""
RUNS = "runs"
"""The list of runs is kept beside the replies, under this name."""
BUSY_S = 2.0
_TABLE = "CREATE TABLE answers (key TEXT PRIMARY KEY, at REAL, used REAL, size INTEGER, answer BLOB)"


class KeptAnswer(NamedTuple):
    """An answer from the cache."""

    answer: dict[str, Any]
    at: float
    """When the box gave it, on this machine's clock."""


class AnswerCache:
    """One file for all boxes; any number of programs may use it. Trouble with it costs the cache, nothing else.

    ``get`` reads the disk: call it in a thread. ``put`` returns at once.
    """

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES, now: Callable[[], float] = time.time) -> None:
        self._path, self._max, self._now = folder / FILE, max_bytes, now
        self._waiting: queue.Queue[tuple[str, float, str, dict[str, Any]]] = queue.Queue()
        self._writer: threading.Thread | None = None

    def put(self, box: str, op: str, params: Mapping[str, Any], answer: dict[str, Any]) -> None:
        """Keep an answer, in a thread. ``answer`` is not changed afterwards."""
        self._waiting.put((_key(box, op, params), self._now(), op, answer))
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="answer-cache", daemon=True)
            self._writer.start()

    def flush(self) -> None:
        """Wait until what was put is written."""
        self._waiting.join()

    def get(self, box: str, op: str, params: Mapping[str, Any]) -> KeptAnswer | None:
        """The last answer to a request, or None."""
        key = _key(box, op, params)
        try:
            with closing(self._open()) as file, file:
                row = file.execute("SELECT answer, at FROM answers WHERE key = ?", (key,)).fetchone()
                if row is None:
                    return None
                file.execute("UPDATE answers SET used = ? WHERE key = ?", (self._now(), key))
            return KeptAnswer(_admitted(op, json.loads(zlib.decompress(row[0]))), float(row[1]))
        except (sqlite3.Error, OSError, ValueError, TypeError, zlib.error, RemoteError):
            return None

    def run_names(self, box: Box) -> list[str]:
        """Names of the runs that a box had when it was last seen, as it listed them. Nothing is created or changed.

        Raises sqlite3.Error, OSError, ValueError and RemoteError where they cannot be read.
        """
        with closing(sqlite3.connect(f"{self._path.absolute().as_uri()}?mode=ro", uri=True)) as file:
            query = "SELECT answer FROM answers WHERE key = ?"
            row = file.execute(query, (_key(_name_of(box), RUNS, {}),)).fetchone()
        return [run["run"] for run in _admitted(RUNS, json.loads(zlib.decompress(row[0])))["runs"]] if row else []

    def _write(self) -> None:
        while True:
            key, at, op, answer = self._waiting.get()
            try:
                if self._waiting.qsize() < 1_000:  # a disk that does not keep up loses answers, not memory
                    self._keep(key, at, _packed(_plain(op, answer)))
            except sqlite3.DatabaseError as error:
                if not isinstance(error, sqlite3.OperationalError):  # it is damaged
                    self._remove()
            except (OSError, ValueError):
                pass
            finally:
                self._waiting.task_done()

    def _keep(self, key: str, at: float, data: bytes) -> None:
        if len(data) > self._max // 10:
            return
        with closing(self._open()) as file, file:
            file.execute("REPLACE INTO answers VALUES (?, ?, ?, ?, ?)", (key, at, at, len(data), data))
            (total,) = file.execute("SELECT SUM(size) FROM answers").fetchone()
            if total > self._max:
                self._drop_oldest(file, total - KEPT_SHARE * self._max)

    @staticmethod
    def _drop_oldest(file: sqlite3.Connection, excess: float) -> None:
        for key, size in file.execute("SELECT key, size FROM answers ORDER BY used").fetchall():
            if excess <= 0:
                break
            file.execute("DELETE FROM answers WHERE key = ?", (key,))
            excess -= size

    def _open(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = sqlite3.connect(self._path, timeout=BUSY_S)
        try:
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if version != VERSION:
                with file:
                    file.execute("BEGIN IMMEDIATE")  # another program may make it at the same time
                    if file.execute("PRAGMA user_version").fetchone()[0] != VERSION:
                        file.execute("DROP TABLE IF EXISTS answers")
                        file.execute(_TABLE)
                        file.execute(f"PRAGMA user_version = {VERSION}")
                self._path.chmod(0o600)
        except BaseException:
            file.close()
            raise
        file.execute("PRAGMA synchronous = OFF")  # losing the last answers costs nothing
        return file

    def _remove(self) -> None:
        for path in self._path.parent.glob(f"{FILE}*"):
            with suppress(OSError):
                path.unlink()


def _packed(answer: Mapping[str, Any]) -> bytes:
    """An answer as compressed JSON, its lists item by item: the text of 10,000 runs is never in memory at once."""
    compressor = zlib.compressobj(1)
    packed = bytearray()

    def add(text: str) -> None:
        packed.extend(compressor.compress(text.encode()))

    for opening, (key, value) in zip(("{", *"," * len(answer)), answer.items(), strict=False):
        add(f"{opening}{json.dumps(key)}:")
        if isinstance(value, list):
            for before, item in zip(("[", *"," * len(value)), value, strict=False):
                add(before + json.dumps(item))
            add("]" if value else "[]")
        else:
            add(json.dumps(value))
    add("}" if answer else "{}")
    return bytes(packed + compressor.flush())


def _name_of(box: Box) -> str:
    """What the answers of a box are kept under: an address changes, a root is another list of runs."""
    return f"{box.name}\n{box.root}"


def _key(box: str, op: str, params: Mapping[str, Any]) -> str:
    return json.dumps([box, op, sorted(params.items())])


def _plain(op: str, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer as the box sent it."""
    return pack_series(answer) if op == "series" else answer


def _admitted(op: str, answer: Any) -> dict[str, Any]:
    """An answer that passed the gate. Raises RemoteError."""
    if op != RUNS:
        return gate.reply(op, {"ok": True, "result": answer})
    event = gate.topic_event("runs", {"value": answer})
    if not isinstance(event, RunsReported):
        raise RemoteError("bad_reply", "not a list of runs")
    return {"runs": event.runs}


Note = Callable[[str, dict[str, Any], dict[str, Any]], None]

KEEP_RUNS_S = 5.0
"""Pause between two lists of runs that are kept."""


class KeptAnswers:
    """Keeps the answers of a box, and has those of the last start."""

    def __init__(self, box: Box, cache: AnswerCache | None, note: Note) -> None:
        self._cache = cache
        self.note = note
        """Keeps an answer in the history only."""
        self._box = _name_of(box)
        self._runs_kept = 0.0
        self._states: dict[str, tuple[Any, Any]] = {}
        self._asked: dict[str, object] = {}

    def keep(self, op: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keep an answer of the box."""
        self.note(op, params, answer)
        if self._cache is not None:
            self._cache.put(self._box, op, params, answer)

    def keep_runs(self, runs: list[dict[str, Any]]) -> None:
        """Keep the list of runs, at once where a state or a verdict changed: an end is announced again otherwise, and
        a list whose runs are all over is not sent again after its verdicts."""
        states = {run["run"]: (run.get("state"), (run.get("verdict") or {}).get("word")) for run in runs}
        if monotonic() - self._runs_kept >= KEEP_RUNS_S or states != self._states:
            self._runs_kept, self._states = monotonic(), states
            self.keep(RUNS, {}, {"runs": runs})

    def keep_curves(self, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keep the curves of a window, unless they are coarse."""
        if answer["state"] == "whole":
            self.keep("series", params, answer)

    @property
    def has_answers(self) -> bool:
        """Whether answers are kept at all."""
        return self._cache is not None

    def is_wanted(self, name: str, of: object) -> bool:
        """Whether something is to be read for the first time."""
        if self._asked.get(name) == of:
            return False
        self._asked[name] = of
        return True

    async def get(self, op: str, params: dict[str, Any]) -> KeptAnswer | None:
        """The kept answer to a request."""
        assert self._cache is not None
        return await asyncio.to_thread(self._cache.get, self._box, op, params)

    async def show_curves(self, curves: Curves) -> None:
        """Show the curves that were kept."""
        kept = await self.get("series", curves.kept_under)
        if kept is not None:
            curves.recall(kept.answer, kept.at)
