"""State of each followed log on the client: its cursor and its credit."""

from __future__ import annotations

from typing import Any, TypeAlias

from grpo_train.run_dir.lazy_dataclass import dataclass
from remote import gate
from remote.events import LogArrived, LogFailed, LogRotated
from remote.protocol import INITIAL_CREDIT, Cursor, Flood, ProtocolError, data_of

RETURN_AT = INITIAL_CREDIT // 8
"""Credit is returned in portions of at least this many bytes, or once nothing is outstanding."""

HASH_LENGTH = 64
LogEvent: TypeAlias = LogArrived | LogRotated | LogFailed


@dataclass
class Follow:
    """One followed log. It outlives connections and is subscribed under the same id on each."""

    subscription: int
    path: str
    cursor: Cursor | None
    tail_bytes: int | None
    unconsumed: int = 0
    """Bytes passed to the owner and not yet consumed; deducted from the credit, also after a reconnect."""
    returnable: int = 0
    credit: int = 0
    """Bytes that the box may still send on this connection."""

    def subscribe_frame(self) -> dict[str, Any]:
        """The frame that subscribes to everything after the cursor, on a new connection."""
        self.returnable = 0
        self.credit = max(0, INITIAL_CREDIT - self.unconsumed)
        params: dict[str, Any] = {"path": self.path, "cursor": self.cursor.to_json() if self.cursor else None}
        if self.tail_bytes is not None:
            params["tail_bytes"] = self.tail_bytes
        return {"type": "subscribe", "id": self.subscription, "topic": "log", "params": params, "credit": self.credit}

    def event(self, kind: str, frame: dict[str, Any]) -> LogEvent:
        """Accept a ``data``, ``rotated`` or ``closed`` frame. Raises ProtocolError."""
        if kind == "data":
            return self.data(frame)
        return self.rotated() if kind == "rotated" else self.failed(frame)

    def data(self, frame: dict[str, Any]) -> LogArrived:
        """Accept a ``data`` frame.

        Raises Flood for more bytes than were granted, and ProtocolError when it does not continue where the previous
        one ended.
        """
        data, offset = data_of(frame), int(frame["offset"])
        self.credit -= len(data)
        if self.credit < 0:
            raise Flood(f"{self.path}: {-self.credit} bytes more than the credit that was granted")
        known = self.cursor
        if known is not None and offset != known.offset:
            raise ProtocolError(f"{self.path}: expected byte {known.offset}, received {offset}")
        self.cursor = _cursor_after(frame, known or Cursor(self.path), offset + len(data))
        self.unconsumed += len(data)
        return LogArrived(self.subscription, self.path, offset, data, self.cursor)

    def rotated(self) -> LogRotated:
        self.cursor = Cursor(self.path)
        return LogRotated(self.subscription, self.path)

    def failed(self, frame: dict[str, Any]) -> LogFailed:
        return LogFailed(self.subscription, self.path, gate.refusal(frame.get("error")).message)

    def consumed(self, count: int) -> int:
        """Record that the owner consumed ``count`` bytes; returns the credit to return now (often 0)."""
        count = min(count, self.unconsumed)
        self.unconsumed -= count
        self.returnable += count
        if self.returnable < RETURN_AT and self.unconsumed:
            return 0
        granted, self.returnable = self.returnable, 0
        self.credit += granted
        return granted


def _cursor_after(frame: dict[str, Any], known: Cursor, offset: int) -> Cursor:
    """The cursor after a ``data`` frame. Raises ProtocolError."""
    try:
        length, digest = frame.get("head") or (known.head_length, known.head_sha256)
        device, inode = frame.get("file") or (known.device, known.inode)
        cursor = Cursor(
            known.path, offset, int(length), str(digest), str(frame.get("tail", "")), int(device), int(inode)
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"malformed 'data' frame: {error}") from error
    if len(cursor.head_sha256) > HASH_LENGTH or len(cursor.tail_sha256) > HASH_LENGTH:
        raise ProtocolError("malformed 'data' frame: a hash is too long")
    return cursor
