"""The queue of frames for the client, bounded by construction, and the thread that writes them.

``data`` frames are bounded by the client's credit, responses by the number of pending requests, and only the newest
value of a topic waits. A client that reads slowly only sees older values.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from typing import Any

from grpo_train.run_dir.clock import Clock
from remote.protocol import ProtocolError, encode_parts


class Outbox:
    """Frames for the client, written by a dedicated thread."""

    def __init__(self, descriptor: int, clock: Clock) -> None:
        self._descriptor, self._clock = descriptor, clock
        self._lock = threading.Lock()
        self._filled = threading.Event()
        self._lines: deque[bytes] = deque()
        self._newest: dict[int, dict[str, Any]] = {}
        self.broken = threading.Event()
        """Set when the client no longer reads."""
        threading.Thread(target=self._write, name="outbox", daemon=True).start()

    def put(self, frame: dict[str, Any]) -> None:
        """Send a frame after all queued ones."""
        self.put_encoded(b"".join(encode_parts(frame)))

    def put_encoded(self, line: bytes) -> None:
        """Send an encoded frame after all queued ones."""
        with self._lock:
            self._lines.append(line)
            self._filled.set()

    def put_first(self, frame: dict[str, Any]) -> None:
        """Send a frame before all queued ones: a pong measures the link, not the length of the queue."""
        with self._lock:
            self._lines.appendleft(b"".join(encode_parts(frame)))
            self._filled.set()

    def put_newest(self, frame: dict[str, Any]) -> None:
        """Send a frame in place of an unsent one of the same subscription."""
        with self._lock:
            self._newest[frame["id"]] = frame
            self._filled.set()

    def forget(self, subscription: int) -> None:
        """Drop the unsent value of an ended subscription."""
        with self._lock:
            self._newest.pop(subscription, None)

    def _write(self) -> None:
        while True:
            self._clock.wait(self._filled)
            with self._lock:
                if self._lines:
                    payload = self._lines.popleft()
                elif self._newest:
                    payload = _encode(self._newest.pop(next(iter(self._newest))))
                else:
                    self._filled.clear()
                    continue
            view = memoryview(payload)
            try:
                while view:
                    view = view[os.write(self._descriptor, view) :]
            except OSError:
                self.broken.set()
                return


def _encode(frame: dict[str, Any]) -> bytes:
    """A topic's value as lines; a value too large even for parts is dropped, with a message on stderr."""
    try:
        return b"".join(encode_parts(frame))
    except ProtocolError as error:
        print(f"agent: {error}", file=sys.stderr)
        return b""
