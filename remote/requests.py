"""Pending requests: each ends exactly once, with a reply, a refusal or its deadline.

A request that changes something and has an idempotency key is sent again after a reconnect, like one that only reads.
Its error ``timeout`` means that the box may have it; ``unreachable``, that it was not sent.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import field
from typing import Any

from grpo_train.run_dir.lazy_dataclass import dataclass
from remote import gate
from remote.protocol import OPERATIONS, RemoteError


@dataclass
class Pending:
    """One request."""

    id: int
    op: str
    params: dict[str, Any]
    deadline: float
    future: Future[dict[str, Any]] = field(default_factory=Future)
    sent: bool = False
    """On the present connection."""
    sent_before: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes something; if not, it waits for a lost link."""
        return OPERATIONS[self.op].changes(self.params)

    @property
    def repeatable(self) -> bool:
        """Whether it is sent again after a reconnect."""
        return not self.changes or bool(self.params.get("idempotency_key") and (self.sent or self.sent_before))

    def frame(self) -> dict[str, Any]:
        return {"type": "request", "id": self.id, "op": self.op, "params": self.params}


class Requests:
    """The table of pending requests. Futures are completed outside the lock: their callbacks may send new requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}

    def add(self, pending: Pending) -> None:
        pending.future.set_running_or_notify_cancel()  # cannot be canceled from here on
        with self._lock:
            self._pending[pending.id] = pending

    def answer(self, frame: dict[str, Any]) -> bool:
        """Complete the request of a ``response`` frame; returns whether there was one that waited for it."""
        with self._lock:
            pending = self._pending.pop(frame["id"], None)
        if pending is None:
            return False
        try:
            reply = gate.reply(pending.op, frame)
        except RemoteError as error:
            pending.future.set_exception(error)
        else:
            pending.future.set_result(reply)
        return True

    def unsent(self) -> list[Pending]:
        """Requests to send on a new connection, oldest first."""
        with self._lock:
            return [pending for pending in self._pending.values() if not pending.sent]

    def link_lost(self, reason: str) -> None:
        """Keep repeatable requests for the next connection; fail the others, whose outcome is unknown."""
        with self._lock:
            lost = [p for p in self._pending.values() if not p.repeatable]
            for pending in lost:
                del self._pending[pending.id]
            for pending in self._pending.values():
                pending.sent_before |= pending.sent
                pending.sent = False
        for pending in lost:
            if not pending.sent:
                pending.future.set_exception(unreachable(pending.op, reason))
                continue
            pending.future.set_exception(
                RemoteError(
                    "unreachable",
                    f"the link broke before '{pending.op}' was answered: {reason}",
                    "the outcome is unknown; check the runs once the link is back",
                )
            )

    def fail_all(self, reason: str) -> None:
        with self._lock:
            lost = list(self._pending.values())
            self._pending.clear()
        for pending in lost:
            unknown = pending.changes and (pending.sent or pending.sent_before)
            pending.future.set_exception((unanswered if unknown else unreachable)(pending.op, reason))

    def expire(self, now: float) -> None:
        """Fail requests whose deadline has passed."""
        with self._lock:
            late = [pending for pending in self._pending.values() if pending.deadline <= now]
            for pending in late:
                del self._pending[pending.id]
        for pending in late:
            if pending.changes and (pending.sent or pending.sent_before):
                error = unanswered(pending.op, "no answer in time")
            elif pending.sent:
                error = RemoteError("timeout", f"'{pending.op}' was not answered in time", "retry")
            else:
                error = unreachable(pending.op, "the link did not come up in time")
            pending.future.set_exception(error)


def unreachable(op: str, reason: str) -> RemoteError:
    return RemoteError(
        "unreachable",
        f"'{op}' was not sent: {reason}",
        "runs on the box are not affected; the link reconnects automatically",
    )


def unanswered(op: str, reason: str) -> RemoteError:
    return RemoteError("timeout", f"'{op}' was sent but not answered: {reason}", "check the runs once the link is back")
