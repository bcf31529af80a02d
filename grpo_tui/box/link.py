"""The client of the shown box: its events on their way to the app, followed logs, tunnels. No Textual.

The first box connects while Python still imports the screens (:class:`EarlyClient`). Another one's client is made on a
thread of its own.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from grpo_train.run_dir.errors import UserError
from grpo_tui.box.asking import monotonic
from grpo_tui.box.log import LOGS, TAIL_BYTES, TAILED, log_path
from grpo_tui.box.store import Store
from remote.boxes import Box, read_forward
from remote.events import ClientEvent, Link, LinkChanged, LogArrived, LogFailed, LogRotated
from remote.protocol import RemoteError
from remote.tunnels import LOOPBACK, Tunnel

if TYPE_CHECKING:
    from remote.client import BoxClient

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


TENSORBOARD_PORT = 16_007
TENSORBOARD_S = 90.0
"""TensorBoard starts within this time."""


@dataclass(frozen=True)
class OpenTunnel:
    """A tunnel, and what it is for."""

    label: str
    tunnel: Tunnel
    path: str = ""
    """Of a page: ``/RANDOM/``."""

    @property
    def target(self) -> str:
        return f"{self.tunnel.host}:{self.tunnel.port}"

    @property
    def address(self) -> str:
        """``http://127.0.0.1:16007/RANDOM/`` of a page; else ``127.0.0.1:8888``."""
        return f"http://{self.tunnel.local}{self.path}" if self.path else self.tunnel.local


class BoxTunnels:
    """What is open. They end with the client, or when the box is changed."""

    def __init__(self) -> None:
        self.open: list[OpenTunnel] = []
        self._has_forwards = False

    def open_forwards(self, client: BoxClient, box: Box) -> list[str]:
        """Open those of boxes.yaml, once; returns what could not be opened."""
        if self._has_forwards:
            return []
        self._has_forwards, problems = True, []
        for text in box.forward:
            local_port, host, port = read_forward(text)
            try:
                tunnel = Tunnel(client, host, port, local_port=local_port, exact=True)
            except UserError as error:
                problems.append(f"forward {text}: {error}")
                continue
            self.open.append(OpenTunnel(f"forward {text}", tunnel))
        return problems

    def open_tensorboard(self, client: BoxClient, run: str, reply: dict[str, Any]) -> OpenTunnel:
        """The tunnel to a TensorBoard, the same one for the same server. Raises UserError."""
        known = next((each for each in self.open if each.path == reply["path"]), None)
        if known is None:
            port = int(reply["port"])
            tunnel = Tunnel(client, LOOPBACK, port, local_port=TENSORBOARD_PORT, holds=True)
            known = OpenTunnel(f"TensorBoard of {run}", tunnel, str(reply["path"]))
            self.open.append(known)
        return known

    def end(self, which: OpenTunnel) -> None:
        """End a tunnel."""
        self.open = [each for each in self.open if each is not which]
        which.tunnel.close()

    def close(self) -> None:
        """End all of them."""
        for each in list(self.open):
            self.end(each)


DRAIN_S = 0.03
"""Maximum time for one batch of events, so that keys stay responsive."""
MIN_REST_S = 0.001
SHARE = 0.25
"""Of a core that events may take in the long run, beside what the screen takes: a box may send a log without end …"""
BURST_S = 1.0
"""… after this many seconds without a rest: a log that ends is there sooner."""

MakeClient = Callable[[Box, Callable[[ClientEvent], None]], "BoxClient"]


def make_box_client(box: Box, on_event: Callable[[ClientEvent], None], *, readonly: bool = False) -> BoxClient:
    """A client over SSH, or over a subprocess for this machine."""
    from remote.client import BoxClient

    return BoxClient(box, on_event, readonly=readonly)


class EarlyClient:
    """A client that connects before there is an app. What its box sends waits in an inbox until the app takes it."""

    def __init__(self, box: Box, *, readonly: bool = False) -> None:
        self._box, self._readonly = box, readonly
        self._lock = threading.Lock()
        self._inbox = Inbox(lambda: None, lambda _: None)
        self._deliver: Callable[[ClientEvent], None] = self._inbox.put
        self._client: BoxClient | None = None
        with suppress(Exception):  # the app makes it again, and shows the error
            client = make_box_client(box, self._put, readonly=readonly)
            client.start()
            self._client = client

    def _put(self, event: ClientEvent) -> None:
        with self._lock:
            self._deliver(event)

    def make(self, box: Box, on_event: Callable[[ClientEvent], None]) -> BoxClient:
        """This client for its box, once; a new one for another box, and for each later connection."""
        if self._client is None or box is not self._box:
            return make_box_client(box, on_event, readonly=self._readonly)
        client, self._client = self._client, None
        with self._lock:
            self._inbox.drain(math.inf, on_event)
            self._deliver = on_event
        return client


class Connection:
    """One box: its client, the inbox of its store, and the followed logs of the selected run."""

    def __init__(self, box: Box, store: Store, wake: Callable[[], object], make_client: MakeClient) -> None:
        self.box, self.store = box, store
        self.inbox = Inbox(wake, self._consumed)
        self._make_client = make_client
        self.client: BoxClient | None = None
        self.tunnels = BoxTunnels()
        self._followed: str | None = None
        self._follows: dict[int, str] = {}
        self._listeners: dict[int, Callable[[LogEvent], None]] = {}
        """By subscription, of files that are not logs of the selected run."""
        self._closed = False
        self._saved_s, self._drained_at, self._rests_until = BURST_S, monotonic(), 0.0
        self._read_s = 0.0
        """Of the client's time for frames, what has been counted."""

    @property
    def list_name(self) -> str:
        """Names the list of runs: a box may have several roots."""
        return f"{self.box.name} {self.box.root}".strip()

    def open(self) -> None:
        """Make and start the client. Blocks: call it on its own thread."""
        try:
            client = self.client = self._make_client(self.box, self.inbox.put)
            client.start()  # its events may be taken, and ask for something, before it returns
        except Exception as error:  # a message instead of a traceback on the screen
            self.client = None
            self.inbox.put(LinkChanged(Link.REFUSED, f"cannot start the client: {error}"))
            return
        if self._closed:
            client.close()

    def close(self) -> None:
        """Close the link without waiting for it. Runs are not affected."""
        self._closed = True
        self.tunnels.close()
        if self.client is not None:
            threading.Thread(target=self.client.close, daemon=True).start()

    def request(self, op: str, reply_s: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
        """Send a request to the box."""
        if self.client is None:
            refused: Future[dict[str, Any]] = Future()
            refused.set_exception(RemoteError("unreachable", "not connected yet", "try again in a moment"))
            return refused
        return self.client.request(op, reply_s, **params)

    def drain(self, apply: Callable[[ClientEvent], None]) -> float:
        """Apply events that wait; returns the seconds after which to call it again, 0 if it need not be.

        A box may send a log without end: the app *must not* take more than half of a core for it. What the client's
        thread took for the frames counts, too.
        """
        began = monotonic()
        if began < self._rests_until:
            return self._rests_until - began
        saved = min(BURST_S, self._saved_s + SHARE * (began - self._drained_at))
        left = self.inbox.drain(DRAIN_S, apply)
        self._drained_at = monotonic()
        read_s = self.client.reading_s if self.client is not None else 0.0
        spent = self._drained_at - began + read_s - self._read_s
        self._read_s = read_s
        self._saved_s = max(0.0, saved - spent)
        if not self._saved_s:  # also if none is left: the box sends the next ones at once
            self._rests_until = began + spent / SHARE
            return max(MIN_REST_S, self._rests_until - self._drained_at)
        return MIN_REST_S if left else 0.0

    def take(self, event: ClientEvent) -> None:
        """Apply an event to the store and grant the box credit for its bytes."""
        self.store.apply(event)
        if isinstance(event, LogEvent) and (listener := self._listeners.get(event.subscription)) is not None:
            listener(event)
        if isinstance(event, LogArrived):
            self._consumed(event)

    def _consumed(self, event: LogArrived) -> None:
        if self.client is not None:
            self.client.consumed(event.subscription, len(event.data))

    def follow(self, path: str, listener: Callable[[LogEvent], None]) -> int | None:
        """Follow a file, relative to the root, from its start; returns the subscription, None without a client."""
        if self.client is None:
            return None
        subscription = self.client.follow(path)
        self._listeners[subscription] = listener
        return subscription

    def unfollow(self, subscription: int) -> None:
        """End what :meth:`follow` began."""
        self._listeners.pop(subscription, None)
        if self.client is not None:
            self.client.unfollow(subscription)

    def follow_selected(self) -> None:
        """Follow the logs of the selected run only."""
        run = self.store.run
        wanted = run.name if run is not None and run.layout == "run" else None
        if wanted == self._followed or self.client is None:
            return
        for subscription in self._follows:
            self.client.unfollow(subscription)
        self._follows = {}
        self._followed = wanted
        if wanted is None:
            return
        for log in LOGS:
            tail = TAIL_BYTES if log in TAILED else None
            subscription = self.client.follow(log_path(wanted, log), tail_bytes=tail)
            self._follows[subscription] = log
            self.store.subscribed(subscription, log)
