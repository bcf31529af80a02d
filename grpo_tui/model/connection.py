"""The client of the shown box and the logs that it follows. No Textual.

The client is made after the first frame and on its own thread, because paramiko is slow to import.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.inbox import Inbox, LogEvent
from grpo_tui.model.run_logs import LOGS, TAIL_BYTES, TAILED, log_path
from grpo_tui.model.store import Store
from grpo_tui.model.tunnels import BoxTunnels
from remote.boxes import Box
from remote.events import ClientEvent, Link, LinkChanged, LogArrived
from remote.protocol import RemoteError

if TYPE_CHECKING:
    from remote.client import BoxClient


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

    def request(self, op: str, timeout: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
        """Send a request to the box."""
        if self.client is None:
            refused: Future[dict[str, Any]] = Future()
            refused.set_exception(RemoteError("unreachable", "not connected yet", "try again in a moment"))
            return refused
        return self.client.request(op, timeout, **params)

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
