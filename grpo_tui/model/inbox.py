"""The queue between the client's thread and the app's. No Textual."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from remote.events import ClientEvent


class Inbox:
    """Events from the client's thread, in order. ``wake`` is called once per batch, on that thread."""

    def __init__(self, wake: Callable[[], object]) -> None:
        self._events: deque[ClientEvent] = deque()
        self._woken = False
        self._wake = wake

    def put(self, event: ClientEvent) -> None:
        self._events.append(event)
        if not self._woken:
            self._woken = True
            self._wake()

    def drain(self, seconds: float, apply: Callable[[ClientEvent], None]) -> bool:
        """Apply events for at most ``seconds``. True if some are left: ``wake`` is not called for those."""
        deadline = time.monotonic() + seconds
        while self._events:
            apply(self._events.popleft())
            if self._events and time.monotonic() > deadline:
                return True
        self._woken = False
        return bool(self._events)
