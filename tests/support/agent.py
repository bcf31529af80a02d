"""Support for tests of the link: recorded events, agents in a thread and as a process, an agent without a client.

An agent in a thread has the client's clock, usually a :class:`tests.support.clock.TestClock`, and leaves its process as
it is: the box's ``env`` and ``umask`` apply to an agent of its own process only. Tests of what a process has (its end,
its environment, its bundle, its memory) start one: ``connected(box, process=True)``, ``RawAgent(root, process=True)``.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import select
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.agent import files, index, program
from remote.agent.box import BoxContext
from remote.agent.outbox import Outbox
from remote.agent.serve import Agent, as_remote_error
from remote.base import Unreachable
from remote.boxes import Box
from remote.client import BoxClient
from remote.events import ClientEvent, Link, LinkChanged, LogArrived, LogRotated
from remote.index import process
from remote.index.answers import IndexAnswers
from remote.protocol import AGENT_SILENCE_S, Decoder, ProtocolError, RemoteError, encode_parts
from remote.transports.local import DialedSocket, LocalTransport
from remote.transports.transport import Transport, Waker
from tests.support.clock import TestClock
from tests.support.patience import PATIENCE
from tests.support.patience import eventually as eventually

T = TypeVar("T")


class Recorder:
    """An ``on_event`` that records events, returns credit and joins logs."""

    def __init__(self, *, reconnects: bool = False) -> None:
        """``reconnects``: the user does, whenever the link is lost, so that no test waits for a back-off."""
        self.reconnects = reconnects
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
        if isinstance(event, LinkChanged) and event.state is Link.LOST and event.retry_in_s and self.reconnects:
            assert self.client
            self.client.reconnect_now()

    def wait(self, condition: Callable[[ClientEvent], bool], timeout: float = 15.0, after: int = 0) -> ClientEvent:
        """The first event from index ``after`` on that meets a condition.

        The client's clock is advanced if it stands, but not while a real box answers, which takes real time.
        """
        clock = self.client.clock if self.client is not None and self.client.box.is_local else CLOCK
        deadline = time.monotonic() + PATIENCE * timeout
        looked = after
        while True:
            with self._arrived:
                for event in self.events[looked:]:
                    if condition(event):
                        return event
                looked = len(self.events)
                left = deadline - time.monotonic()
                assert left > 0, f"no such event among {self.events[after:][-10:]}"
                self._arrived.wait(0.01 if isinstance(clock, TestClock) else left)
                is_news = len(self.events) > looked
            if isinstance(clock, TestClock) and not is_news:
                clock.advance(0.25)

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
def connected(
    box: Box, *, process: bool = False, reconnects: bool = False, **options: Any
) -> Iterator[tuple[BoxClient, Recorder]]:
    """A started client and its recorder; closed at the end.

    This machine's agent runs in a thread and has a clock that stands, unless ``process`` or the options name others.
    """
    recorder, threads = Recorder(reconnects=reconnects), list[ThreadTransport]()
    changes = bool(box.env or box.umask)  # its process
    if box.is_local and not process and not changes and "transport_factory" not in options:
        clock = options.setdefault("clock", TestClock())

        def make(box: Box, ask: object) -> Transport:
            threads.append(ThreadTransport(clock))
            return threads[-1]

        options["transport_factory"] = make
    client = BoxClient(box, recorder, **options)
    recorder.client = client
    client.start()
    try:
        yield client, recorder
    finally:
        client.close()
        for transport in threads:
            transport.join()


def ask(client: BoxClient, op: str, **params: Any) -> dict[str, Any]:
    """The reply to a request. Raises RemoteError."""
    return client.request(op, 90 * PATIENCE, **params).result(100 * PATIENCE)


def refusal(client: BoxClient, op: str, **params: Any) -> RemoteError:
    """The error of a request, which is refused with a reason."""
    with pytest.raises(RemoteError) as caught:
        ask(client, op, **params)
    assert caught.value.message
    return caught.value


class ThreadAgent(Agent):
    """An agent that leaves its process as it is."""

    def _adopt(self, box: BoxContext) -> None:
        pass

    def end(self) -> None:
        """End its threads, whose client is gone; in a process of its own they end with that."""
        self._outbox.put({})
        self._outbox.broken.wait()
        if self._watcher is not None:
            self._watcher.refresh("runs", "sessions", "gpu")
        self._follower._wake.set()
        self._follower._thread.join()
        for tail in [*self._follower._tails.values(), *self._follower._ended]:
            tail.close()


class ThreadTransport:
    """An agent in a thread of this process, over two sockets. See :class:`remote.transports.transport.Transport`."""

    def __init__(self, clock: Clock, agents_clock: Clock | None = None, silence_s: float = AGENT_SILENCE_S) -> None:
        self.address = ""
        self._clock, self._silence_s = agents_clock or clock, silence_s
        self._near, self._far = socket.socketpair()
        self._waker = Waker(clock)
        self._errors = ""
        self._owner = threading.get_ident()
        self._thread = threading.Thread(target=self._serve, name="agent", daemon=True)

    def open(self, greeting: bytes = b"") -> None:
        self._owner = threading.get_ident()
        self._thread.start()
        if greeting:
            self.send(greeting)

    def _serve(self) -> None:
        far = self._far.fileno()
        agent = ThreadAgent(far, Outbox(far, self._clock), self._silence_s, self._clock, program.handlers)
        try:
            agent.serve()
            if agent.copies is not None:
                files.serve(agent.copies, far, far, as_remote_error)
        except ProtocolError as error:
            self._errors = f"agent: {error}"
        except ConnectionResetError:
            pass  # the client has closed with frames unread; a pipe would have ended
        agent.finish()
        self._far.shutdown(socket.SHUT_RDWR)
        agent.end()
        self._far.close()

    def send(self, data: bytes) -> None:
        try:
            self._near.sendall(data)
        except OSError as error:
            raise Unreachable(f"the agent on this machine exited ({self.error_tail() or error})") from error

    def receive(self, timeout: float) -> bytes | None:
        try:
            return self._near.recv(1 << 18) if self._waker.wait([self._near.fileno()], timeout) else None
        except (OSError, ValueError):
            return b""

    def dial(self, host: str, port: int) -> DialedSocket:
        return DialedSocket(socket.create_connection((host, port)))

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        with suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)
        if threading.get_ident() == self._owner:
            self._near.close()
            self._waker.close()

    def join(self) -> None:
        """Wait until the agent has ended."""
        if self._thread.ident is None:
            self._far.close()
        else:
            self._thread.join()

    def describe(self) -> str:
        return "this machine"

    def algorithms(self) -> dict[str, str]:
        return {}

    def error_tail(self) -> str:
        return self._errors


@pytest.fixture
def agents_here(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Commands that connect to this machine have its agent in a thread."""
    made: list[ThreadTransport] = []

    def transport(environment: object = None, clock: Clock = CLOCK) -> ThreadTransport:
        made.append(ThreadTransport(clock))
        return made[-1]

    monkeypatch.setattr("remote.transports.local.LocalTransport", transport)
    yield
    for each in made:
        each.join()


class Drained(ThreadTransport):
    """Whose client takes at once what its agent writes, so that the agent never waits while the clock advances."""

    def __init__(self, clock: TestClock) -> None:
        super().__init__(CLOCK, clock, math.inf)
        self._lock = threading.Lock()
        self._arrived, self._ended = bytearray(), False
        self._news = threading.Event()
        self._drainer = threading.Thread(target=self._drain, name="drain", daemon=True)

    def open(self, greeting: bytes = b"") -> None:
        super().open(greeting)
        self._drainer.start()

    def _drain(self) -> None:
        while not self._ended:
            select.select([self._near], [], [])
            with self._lock:
                self._take()

    def _take(self) -> None:
        """Take all that has arrived; the caller holds the lock."""
        try:
            while not self._ended:
                data = self._near.recv(1 << 20, socket.MSG_DONTWAIT)
                self._arrived += data
                self._ended = not data
        except BlockingIOError:
            pass
        except OSError:
            self._ended = True
        self._news.set()

    def receive(self, timeout: float) -> bytes | None:
        for seconds in (0.0, timeout):
            if seconds:
                self._news.wait(seconds)
            with self._lock:
                self._take()
                self._news.clear()
                data, self._arrived = bytes(self._arrived), bytearray()
            if data or self._ended:
                return data
        return None

    def close(self) -> None:
        with suppress(OSError):
            self._near.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        super().join()
        self.close()
        if self._drainer.ident is not None:
            self._drainer.join()  # else it may wait for what gets the closed descriptor's number, and keep that open
        self._near.close()
        self._waker.close()


class IndexHere:
    """What an agent in a thread asks about logs, answered in this process. See :class:`remote.agent.index.Index`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._place: Path | None = None
        self._answers: IndexAnswers | None = None

    def request(self, box: BoxContext, op: str, run: str, params: dict[str, Any]) -> Any:
        path = str(index.open_run(box.root, run).path)
        asked = {"op": op, "root": str(box.root), "run": path, "follow_links": box.settings.follow_links}
        with self._lock:
            place = Path(os.environ.get("XDG_CACHE_HOME") or tempfile.gettempdir(), "grpo-index")
            if self._answers is None or self._place != place:
                self._place, self._answers = place, IndexAnswers([place])
            request = json.loads(json.dumps({"id": 1, **asked, "params": params}))
            answer = json.loads(process._answer(self._answers, request))
        if refusal := answer.get("error"):
            raise RemoteError(refusal["code"], refusal["message"], refusal["hint"])
        return answer["result"]


index._INDEX = IndexHere()  # type: ignore[assignment]  # the agent's own would start this program as its child


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
    """An agent driven frame by frame. Nobody pings it: it waits for the next frame without end."""

    def __init__(self, root: Path, transport: Any = None, *, process: bool = False, **settings: Any) -> None:
        self.clock: TestClock | None = None
        """Of an agent in a thread: it stands, except while a test waits for a frame."""
        if transport is None and process:
            transport = Unwatched({"PATH": "/usr/bin:/bin", "HOME": str(root)})
        elif transport is None:
            self.clock = TestClock()
            transport = Drained(self.clock)
        self.transport = transport
        self.transport.open()
        self.frames: list[dict[str, Any]] = []
        self._decoder = Decoder()
        self._ids = itertools.count(1000)
        self.ended = False
        self.send({"type": "hello", "protocol": 1, "settings": {"root": str(root), **settings}})
        self.hello = self.until(lambda frame: frame["type"] == "hello")

    def close(self) -> None:
        """End it, and all that it has in this process."""
        self.transport.close()
        if isinstance(self.transport, ThreadTransport):
            self.transport.join()

    def open_files(self, below: Path) -> list[str]:
        """The files below a folder that the agent holds."""
        found = []
        for descriptor in Path(f"/proc/{self.hello['host']['pid']}/fd").iterdir():
            with suppress(OSError):
                found.append(os.readlink(descriptor))
        return [target for target in found if target.startswith(f"{below}/")]

    def has_open(self, path: Path) -> bool:
        """Whether the agent holds the file that is at a path now, not one that was there before."""
        return str(path) in self.open_files(path.parent)

    def send(self, *frames: dict[str, Any]) -> None:
        for frame in frames:
            for part in encode_parts(frame):
                self.transport.send(part)

    def read(self, timeout: float = 0.2) -> None:
        """Decode what arrives within ``timeout`` seconds of its clock."""
        data = self.transport.receive(timeout if self.clock is None else 0.0)
        if data is None and self.clock is not None:
            self.clock.advance(timeout)
            data = self.transport.receive(0.005)  # of a thread that answers a request
        if data == b"":
            self.ended = True
        self.frames += self._decoder.feed(data or b"")

    def let_pass(self, seconds: float) -> None:
        """Read all that arrives within a time."""
        until = time.monotonic() + seconds
        if self.clock is not None:
            self.clock.advance(seconds)
            until = 0.0
        while (data := self.transport.receive(max(0.0, until - time.monotonic()))) or time.monotonic() < until:
            self.frames += self._decoder.feed(data or b"")
            if self.clock is not None:
                self.clock.settle()

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
