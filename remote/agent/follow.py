"""All followed logs of a client, polled by one thread.

Polling works on every file system (NFS has no change notification) and is cheap: an unchanged file costs one ``stat``.
A file is read only while its client has credit, so nothing is buffered for a slow client.
"""

from __future__ import annotations

import errno
import threading
import time

from grpo_train.run_dir.clock import Clock
from remote.agent.outbox import Outbox
from remote.agent.tail import Tail
from remote.protocol import RemoteError

POLL_S = 0.08
"""Pause between two polls …"""
SLOWEST_S = 2.0
"""… and its maximum, for …"""
PAUSE_RATIO = 15.0
"""… this multiple of a poll's CPU time: polling takes at most 6 % of a core, with any number of logs."""
MOST_OPEN = 16_384
_TRANSIENT = frozenset(
    {errno.EIO, errno.ENOENT, errno.ESTALE, errno.EAGAIN, errno.ENOTCONN, errno.ETIMEDOUT, errno.EMFILE, errno.ENFILE}
)
"""Errors of a network mount that is temporarily away, and of a process without a free descriptor."""


class Follower:
    """The tails of one agent."""

    def __init__(self, outbox: Outbox, clock: Clock) -> None:
        self._outbox, self._clock = outbox, clock
        self._lock = threading.Lock()
        self._tails: dict[int, Tail] = {}
        self._ready: list[Tail] = []
        """Tails to step before the next poll."""
        self._ended: list[Tail] = []
        """Tails to close, by the thread that uses their descriptors."""
        self._open: dict[Tail, None] = {}
        """Tails with an open file, the last read last."""
        self._most_open = _most_open()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._poll, name="follower", daemon=True)
        self._thread.start()

    def add(self, tail: Tail) -> None:
        with self._lock:
            self._tails[tail.subscription] = tail
            self._ready.append(tail)
        self._wake.set()

    def remove(self, subscription: int) -> None:
        with self._lock:
            if tail := self._tails.pop(subscription, None):
                self._ended.append(tail)
        self._wake.set()

    def credit(self, subscription: int, count: int) -> None:
        """Allow ``count`` more bytes to be sent."""
        with self._lock:
            if tail := self._tails.get(subscription):
                tail.grant(max(0, count))
                self._ready.append(tail)
        self._wake.set()

    def _poll(self) -> None:
        busy: list[Tail] = []
        next_poll = 0.0
        while not self._outbox.broken.is_set():
            if not busy:
                left = max(0.0, next_poll - self._clock.monotonic()) if self._tails else None
                self._clock.wait(self._wake, left)
            self._wake.clear()
            polled = self._clock.monotonic() >= next_poll
            with self._lock:
                tails = list(self._tails.values()) if polled else list(dict.fromkeys(self._ready + busy))
                ended, self._ready, self._ended = self._ended, [], []
            for tail in ended:
                tail.close()
                self._open.pop(tail, None)
            began = time.thread_time()
            busy = [tail for tail in tails if self._step(tail)]
            if polled:
                pause = PAUSE_RATIO * (time.thread_time() - began)
                next_poll = self._clock.monotonic() + min(SLOWEST_S, max(POLL_S, pause))

    def _step(self, tail: Tail) -> bool:
        """One step, without the lock: a hanging disk must not block the thread that answers pings."""
        if self._tails.get(tail.subscription) is not tail:
            return False
        sent = tail.sent
        try:
            again = tail.step(self._outbox)
        except OSError as error:
            if error.errno in _TRANSIENT:
                tail.forget()
                self._open.pop(tail, None)
                return False
            refusal = RemoteError("io", f"{tail.path}: {error.strerror or error}")
        except RemoteError as error:
            refusal = error
        else:
            if tail.sent != sent or tail.is_open is not (tail in self._open):
                self._keep(tail)
            return again
        self.remove(tail.subscription)
        self._outbox.put({"type": "closed", "id": tail.subscription, "error": refusal.to_json()})
        return False

    def _keep(self, tail: Tail) -> None:
        """Record whether a tail's file is open; above the limit the one read longest ago is closed."""
        self._open.pop(tail, None)
        if tail.is_open:
            self._open[tail] = None
            if len(self._open) > self._most_open:
                oldest = next(iter(self._open))
                oldest.close()
                del self._open[oldest]


def _most_open() -> int:
    """Half of the descriptors that this process may have, less the one that is open while the oldest is closed."""
    import resource  # POSIX only

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(soft // 2, MOST_OPEN) - 1 if soft != resource.RLIM_INFINITY else MOST_OPEN - 1
