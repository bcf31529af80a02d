"""Requests under way: each ends exactly once, with a result, a refusal or its deadline."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from remote.protocol import RemoteError

READS = frozenset(
    {"doctor", "list_runs", "show_run", "list_configs", "read_config", "list_tasks", "list_sessions", "capture_pane"}
)
"""Operations that change nothing: they are sent again after a reconnect, and wait for a link that is not up yet."""


@dataclass
class Pending:
    """One request."""

    id: int
    op: str
    params: dict[str, Any]
    deadline: float
    future: Future[dict[str, Any]] = field(default_factory=Future)
    sent: bool = False

    @property
    def repeatable(self) -> bool:
        return self.op in READS or bool(self.params.get("dry_run"))

    def frame(self) -> dict[str, Any]:
        return {"type": "request", "id": self.id, "op": self.op, "params": self.params}


class Requests:
    """The table of pending requests. Futures are completed outside the lock: their callbacks may ask again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}

    def add(self, pending: Pending) -> None:
        pending.future.set_running_or_notify_cancel()  # from here on only the answer or the deadline ends it
        with self._lock:
            self._pending[pending.id] = pending

    def answer(self, frame: dict[str, Any]) -> None:
        """Complete the request that a ``response`` frame belongs to (it may have expired: then nothing)."""
        with self._lock:
            pending = self._pending.pop(int(frame["id"]), None)
        if pending is None:
            return
        if frame.get("ok"):
            pending.future.set_result(frame.get("result") or {})
        else:
            pending.future.set_exception(RemoteError.from_json(frame.get("error") or {}))

    def unsent(self) -> list[Pending]:
        """Those to send on a fresh connection, in the order they were asked."""
        with self._lock:
            return [pending for pending in self._pending.values() if not pending.sent]

    def link_lost(self, why: str) -> None:
        """Keep the repeatable ones for the next connection; the others may or may not have happened: say so."""
        with self._lock:
            lost = [p for p in self._pending.values() if not p.repeatable]
            for pending in lost:
                del self._pending[pending.id]
            for pending in self._pending.values():
                pending.sent = False
        for pending in lost:
            if not pending.sent:
                pending.future.set_exception(unreachable(pending.op, why))
                continue
            pending.future.set_exception(
                RemoteError(
                    "unreachable",
                    f"the link broke while '{pending.op}' was under way: {why}",
                    "it may have happened or not; look at the runs when the link is back",
                )
            )

    def fail_all(self, why: str) -> None:
        with self._lock:
            lost = list(self._pending.values())
            self._pending.clear()
        for pending in lost:
            pending.future.set_exception(unreachable(pending.op, why))

    def expire(self, now: float | None = None) -> None:
        """Fail those whose deadline has passed."""
        now = time.monotonic() if now is None else now
        with self._lock:
            late = [pending for pending in self._pending.values() if pending.deadline <= now]
            for pending in late:
                del self._pending[pending.id]
        for pending in late:
            if pending.sent:
                error = RemoteError("timeout", f"no answer to '{pending.op}' in time", "try again")
            else:
                error = unreachable(pending.op, "the link did not come up in time")
            pending.future.set_exception(error)


def unreachable(op: str, why: str) -> RemoteError:
    return RemoteError("unreachable", f"'{op}' was not sent: {why}", "runs on the box go on; it reconnects by itself")
