"""The one thread that writes to the client. Nothing it holds can grow without bound.

``data`` frames are bounded by the credit their client gave, responses by the number of requests under way; of a topic's
values only the newest waits. So a client that reads slowly costs nothing but its own freshness.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Any

from remote.protocol import ProtocolError, encode_parts


class Outbox:
    """Frames for the client, written by a thread of its own."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._condition = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._newest: dict[int, dict[str, Any]] = {}
        self.broken = threading.Event()
        """Set when nobody reads any more."""
        threading.Thread(target=self._write, name="outbox", daemon=True).start()

    def put(self, frame: dict[str, Any]) -> None:
        """Send a frame, in order."""
        self.put_lines(encode_parts(frame))

    def put_lines(self, lines: list[bytes]) -> None:
        """Send encoded frames, in order; the lines of one call stay together."""
        with self._condition:
            self._lines.append(b"".join(lines))
            self._condition.notify()

    def put_first(self, frame: dict[str, Any]) -> None:
        """Send a frame before all that wait: a pong shows that the agent lives, not how much it has to say."""
        with self._condition:
            self._lines.appendleft(b"".join(encode_parts(frame)))
            self._condition.notify()

    def put_newest(self, subscription: int, frame: dict[str, Any]) -> None:
        """Send a frame that replaces an unsent one of the same subscription."""
        with self._condition:
            self._newest[subscription] = frame
            self._condition.notify()

    def forget(self, subscription: int) -> None:
        """Drop the unsent value of a subscription that ended."""
        with self._condition:
            self._newest.pop(subscription, None)

    def is_empty(self) -> bool:
        with self._condition:
            return not self._lines and not self._newest

    def _write(self) -> None:
        while True:
            with self._condition:
                while not self._lines and not self._newest:
                    self._condition.wait()
                if self._lines:
                    payload = self._lines.popleft()
                else:
                    payload = _encode(self._newest.pop(next(iter(self._newest))))
            view = memoryview(payload)
            try:
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                self.broken.set()
                return


def _encode(frame: dict[str, Any]) -> bytes:
    """A topic's value as lines; one that is too large even for parts is left out, and said so on stderr."""
    try:
        return b"".join(encode_parts(frame))
    except ProtocolError as error:
        print(f"agent: {error}", file=sys.stderr)
        return b""
