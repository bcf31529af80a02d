"""Requests with an idempotency key: each is carried out once, and a repeat gets the answer.

A request must not happen twice, nor its outcome become unknown, when its agent is killed or its answer is lost. So
``training_runs/.requests-UID/OP-KEY.jsonl`` has a line from before the request changed anything (what it found), and
one with the reply. The file is locked meanwhile: after a reconnect a second agent may get a request that the first
still works on. With the first line alone, an agent was killed in the middle; the handler finds out how far it came. A
refusal changed nothing, so it leaves no line.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from grpo_train.run_dir.root import find_by_key
from remote.agent.box import BoxContext
from remote.protocol import RemoteError

Request = TypeVar("Request")
Reply = TypeVar("Reply")
FOLDER = ".requests"
MAX_RECORDS = 1_000
KEPT_S = 86_400.0
"""A record is kept at least this long, however many there are."""


class RequestRecord:
    """What is known of one key. Nothing is kept without a file: no key, or a disk that takes none."""

    def __init__(self, key: str, descriptor: int | None = None) -> None:
        self.key, self._descriptor = key, descriptor
        self.found: dict[str, Any] | None = None
        """What an earlier agent found before it changed anything."""
        self.reply: Any = None
        self._began = False
        if descriptor is not None:
            for row in _rows(descriptor):
                self.found, self.reply = row.get("found", self.found), row.get("reply", self.reply)

    def begin(self, **found: Any) -> None:
        """Record that the request is about to change something."""
        self._began = True
        if self.found is None:
            self._append({"time": time.time(), "found": found})

    def finish(self, reply: Any) -> None:
        self._append({"reply": reply})

    def cancel(self) -> None:
        """The request was refused: forget that it began."""
        if self._began and self.found is None and self._descriptor is not None:
            with suppress(OSError):
                os.ftruncate(self._descriptor, 0)

    def _append(self, row: dict[str, Any]) -> None:
        if self._descriptor is None:
            return
        with suppress(OSError):  # a full disk must not prevent a stop
            os.write(self._descriptor, f"\n{json.dumps(row)}\n".encode())
            os.fsync(self._descriptor)


def once(
    op: str, handler: Callable[[BoxContext, Request, RequestRecord], Reply]
) -> Callable[[BoxContext, Request], Reply]:
    """Answer a repeated idempotency key from the record of the first request. ``op``: the operation's name, under which
    requests are recorded; agents of other versions read the records, too.

    Raises RemoteError ``not_received`` for a ``recall`` of a key that this box does not know.
    """

    @functools.wraps(handler)
    def answer(box: BoxContext, request: Any) -> Any:
        key = "" if getattr(request, "dry_run", False) else request.idempotency_key
        with _record(box.root, op, key) as record:
            if record.reply is not None:
                return {**record.reply, **({"started": False} if "started" in record.reply else {})}
            if key and request.recall and record.found is None and find_by_key(box.root, key) is None:
                raise RemoteError("not_received", f"the box has not received this {op}")
            try:
                reply = handler(box, request, record)
            except Exception:
                record.cancel()
                raise
            record.finish(reply)
            return reply

    return answer


@contextmanager
def _record(root: Path, op: str, key: str) -> Iterator[RequestRecord]:
    """The record of a key, locked."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:32] if key else ""
    descriptor = _open(root / "training_runs", f"{op}-{digest}.jsonl") if key else None
    try:
        yield RequestRecord(digest, descriptor)
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(runs: Path, name: str) -> int | None:
    """A locked descriptor; None without a root, or without room for the file."""
    import fcntl

    if not runs.is_dir():
        return None
    folder = runs / f"{FOLDER}-{os.geteuid()}"  # each account its own, as runs are
    try:
        folder.mkdir(exist_ok=True)
        _prune(folder)
        descriptor = os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    with suppress(OSError):  # a mount without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _rows(descriptor: int) -> Iterator[dict[str, Any]]:
    for line in os.pread(descriptor, 1 << 20, 0).splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(row := json.loads(line), dict):
                yield row


def _prune(folder: Path) -> None:
    """Remove the oldest records above the limit, unless they are recent."""
    files = list(folder.iterdir())
    if len(files) <= MAX_RECORDS:
        return
    oldest = sorted((file.stat().st_mtime, file) for file in files)[: len(files) - MAX_RECORDS]
    for changed, file in oldest:
        if time.time() - changed > KEPT_S:
            file.unlink(missing_ok=True)
