"""The queue between the client's threads and the app's. No Textual."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from grpo_tui.model.app_time import monotonic
from remote.events import ClientEvent, LogArrived, LogFailed, LogRotated

JOINED = 4_096
"""Shorter pieces of a log are joined with the next one."""
LogEvent = LogArrived | LogRotated | LogFailed


class Inbox:
    """Events from the client's threads. ``wake`` is called once per batch, on the thread that puts the first event.

    The app may not read for hours (while a session is attached), and the box is not trusted. Whatever it sends, only
    this *must* wait: the newest state of the link, greeting and host key, the newest value and failure of each topic,
    and of each followed log one rotation, its end, and the bytes after the rotation, which are bounded by the client's
    credit, in pieces of at least JOINED bytes. Bytes that a rotation makes obsolete are passed to ``discard``.
    """

    def __init__(self, wake: Callable[[], object], discard: Callable[[LogArrived], object]) -> None:
        self._wake, self._discard = wake, discard
        self._lock = threading.Lock()
        self._newest: dict[tuple[type, str], ClientEvent] = {}
        self._logs: dict[int, deque[LogEvent]] = {}
        self._woken = False

    def put(self, event: ClientEvent) -> None:
        with self._lock:
            if isinstance(event, LogEvent):
                obsolete = self._put_log(event, self._logs.setdefault(event.subscription, deque()))
            else:
                key, obsolete = (type(event), getattr(event, "topic", "")), []
                self._newest.pop(key, None)  # a value after a failure is read after it
                self._newest[key] = event
            wake, self._woken = not self._woken, True
        for discarded in obsolete:
            self._discard(discarded)
        if wake:
            self._wake()

    def _put_log(self, event: LogEvent, waiting: deque[LogEvent]) -> list[LogArrived]:
        """Queue an event of a log; returns those that it makes obsolete."""
        last = waiting[-1] if waiting else None
        if isinstance(event, LogArrived) and isinstance(last, LogArrived) and len(last.data) < JOINED:
            waiting[-1] = replace(event, offset=last.offset, data=last.data + event.data)
            return []
        obsolete = [old for old in waiting if isinstance(old, LogArrived)] if isinstance(event, LogRotated) else []
        if isinstance(event, LogRotated):
            waiting.clear()
        waiting.append(event)
        return obsolete

    def drain(self, seconds: float, apply: Callable[[ClientEvent], None]) -> bool:
        """Apply events for at most ``seconds``. True if some are left: ``wake`` is not called for those."""
        deadline = monotonic() + seconds
        while (event := self._next()) is not None:
            apply(event)
            if monotonic() > deadline:
                with self._lock:
                    self._woken = bool(self._newest or self._logs)
                    return self._woken
        return False

    def _next(self) -> ClientEvent | None:
        with self._lock:
            if self._newest:
                return self._newest.pop(next(iter(self._newest)))
            if self._logs:
                subscription = next(iter(self._logs))
                waiting = self._logs.pop(subscription)
                event = waiting.popleft()
                if waiting:
                    self._logs[subscription] = waiting  # behind the other logs
                return event
            self._woken = False
            return None
