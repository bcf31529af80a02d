"""Support for tests of the link: recorded events, running agents, an agent without a client."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from remote.boxes import Box
from remote.client import BoxClient, Timing
from remote.events import ClientEvent, Link, LinkChanged, LogArrived, LogRotated
from remote.protocol import Decoder, encode_parts
from remote.transports.local import LocalTransport
from tests.support.patience import PATIENCE
from tests.support.patience import eventually as eventually

T = TypeVar("T")
QUICK = Timing(ping_every=0.1, stale_after=0.6, lost_after=1.5, backoff_first=0.1, backoff_most=0.5, settled_after=0.5)
PATIENT = replace(QUICK, stale_after=5.0, lost_after=15.0)
"""For tests that send requests: a slow machine is not a lost link."""


class Recorder:
    """An ``on_event`` that records events, returns credit and joins logs."""

    def __init__(self) -> None:
        self.events: list[ClientEvent] = []
        self.logs: dict[int, bytearray] = {}
        self.client: BoxClient | None = None
        self.returns_credit = True
        self._arrived = threading.Condition()

    def __call__(self, event: ClientEvent) -> None:
        with self._arrived:
            self.events.append(event)
            if isinstance(event, LogArrived):
                log = self.logs.setdefault(event.subscription, bytearray())
                log += event.data
            if isinstance(event, LogRotated):
                self.logs[event.subscription] = bytearray()
            self._arrived.notify_all()
        if isinstance(event, LogArrived) and self.client and self.returns_credit:
            self.client.consumed(event.subscription, len(event.data))

    def wait(self, condition: Callable[[ClientEvent], bool], timeout: float = 15.0, after: int = 0) -> ClientEvent:
        """The first event from index ``after`` on that meets a condition."""
        deadline = time.monotonic() + PATIENCE * timeout
        with self._arrived:
            while True:
                for event in self.events[after:]:
                    if condition(event):
                        return event
                left = deadline - time.monotonic()
                assert left > 0, f"no such event among {self.events[after:][-10:]}"
                self._arrived.wait(left)

    def wait_link(self, state: Link, timeout: float = 15.0, after: int = 0) -> LinkChanged:
        event = self.wait(lambda e: isinstance(e, LinkChanged) and e.state is state, timeout, after)
        assert isinstance(event, LinkChanged)
        return event

    def wait_reconnected(self, after: int) -> LinkChanged:
        """The link's return after a loss: a slow pong also ends in ``CONNECTED``, on the old connection."""
        lost = self.wait_link(Link.LOST, after=after)
        return self.wait_link(Link.CONNECTED, after=self.events.index(lost, after))

    def wait_for(self, kind: type[T], timeout: float = 15.0, after: int = 0) -> T:
        event = self.wait(lambda e: isinstance(e, kind), timeout, after)
        assert isinstance(event, kind)
        return event

    def mark(self) -> int:
        return len(self.events)


@contextmanager
def connected(box: Box, **options: Any) -> Iterator[tuple[BoxClient, Recorder]]:
    """A started client and its recorder; closed at the end."""
    recorder = Recorder()
    client = BoxClient(box, recorder, **{"timing": QUICK, **options})
    recorder.client = client
    client.start()
    try:
        yield client, recorder
    finally:
        client.close()


def agents(folder: Path) -> list[int]:
    """Pids of agents that run from a bundle below ``folder``."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            argv = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if any(argument.startswith(str(folder).encode()) and argument.endswith(b".pyz") for argument in argv):
            found.append(int(entry.name))
    return found


class Unwatched(LocalTransport):
    """A transport of an agent that nobody pings: it waits long for the next frame."""

    def command(self) -> list[str]:
        return [*super().command(), "--silence", "600"]


class RawAgent:
    """An agent driven frame by frame."""

    def __init__(self, root: Path, transport: LocalTransport | None = None, **settings: Any) -> None:
        environment = {"PATH": "/usr/bin:/bin", "HOME": str(root)}
        self.transport = transport or Unwatched(environment)
        self.transport.open()
        self.frames: list[dict[str, Any]] = []
        self._decoder = Decoder()
        self._ids = itertools.count(1000)
        self.ended = False
        self.send({"type": "hello", "protocol": 1, "settings": {"root": str(root), **settings}})
        self.hello = self.until(lambda frame: frame["type"] == "hello")

    def has_open(self, path: Path) -> bool:
        """Whether the agent holds the file that is at a path now, not one that was there before."""
        process = self.transport._process
        assert process is not None
        found = set()
        for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
            with suppress(OSError):
                found.add(os.readlink(descriptor))
        return str(path) in found

    def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            for part in encode_parts(frame):
                self.transport.send(part)

    def read(self, timeout: float = 0.2) -> None:
        """Decode what has arrived."""
        data = self.transport.receive(timeout)
        if data == b"":
            self.ended = True
        self.frames += self._decoder.feed(data or b"")

    def until(self, condition: Callable[[dict[str, Any]], bool], timeout: float = 10.0) -> dict[str, Any]:
        """The first frame, including earlier ones, that meets a condition."""
        deadline = time.monotonic() + PATIENCE * timeout
        while True:
            for frame in self.frames:
                if condition(frame):
                    return frame
            assert time.monotonic() < deadline, self.frames[-5:]
            assert not self.ended, self.transport.error_tail()
            self.read()

    def request(self, op: str, **params: Any) -> dict[str, Any]:
        """Send a request and return the response frame."""
        request_id = next(self._ids)
        self.send({"type": "request", "id": request_id, "op": op, "params": params})
        return self.until(lambda frame: frame["type"] == "response" and frame["id"] == request_id, 40)
