"""The laptop's end of the link: one :class:`BoxClient` per box keeps the link up and reports events.

    client = BoxClient(box, on_event)
    client.start()
    runs = client.request("list_runs").result()
    log = client.follow("training_runs/RUN/logs/train_log.jsonl", tail_bytes=65_536)
    ...                                  # after each LogArrived event: client.consumed(log, n)
    client.close()

**Threads.** ``on_event`` is called on the client's threads, one event at a time per thread, without a lock held. It
must return quickly (post a message, do not work), because pings wait for it. Every method may be called from any
thread, including from ``on_event``. Futures complete on the client's threads.

**The link is not the job.** ``Link`` is the state of the connection, independent of any run.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from remote import gate
from remote.answers import Answers
from remote.base import Refused, TryAgain, Unreachable
from remote.boxes import Box
from remote.events import ClientEvent, ClockMeasured, Link, LinkChanged, LogArrived
from remote.follows import Follow, LogEvent
from remote.protocol import OPERATIONS, VALUE_TOPICS, Cursor, Decoder, Flood, ProtocolError, RemoteError, encode_parts
from remote.requests import Pending, Requests, unreachable
from remote.transports.choice import TransportChoice
from remote.transports.timing import FLOODED, Pings, Timing, Waiting
from remote.transports.transport import (
    CREDIT_WORTH,
    FRAME_COST,
    ROTATION_COST,
    Allowance,
    AskHostKey,
    Transport,
    await_hello,
    greeting,
)

logger = logging.getLogger(__name__)
TransportFactory = Callable[[Box, AskHostKey], Transport]
WATCH_S = 0.25
"""Between two looks of the watchdog."""


class BoxClient:
    """Keeps one agent connected, sends requests, and follows logs. See the module docstring for threads."""

    def __init__(
        self,
        box: Box,
        on_event: Callable[[ClientEvent], None],
        *,
        host_keys_file: str | Path | None = None,
        ssh_config: str | None = None,
        transport_factory: TransportFactory | None = None,
        timing: Timing | None = None,
        clock: Clock = CLOCK,
        readonly: bool = False,
    ) -> None:
        """``readonly``: the agent refuses every request that changes state (code ``read_only``)."""
        self.box, self._readonly, self.clock = box, readonly, clock
        self._on_event = on_event
        self._timing = timing or Timing()
        self._closing = threading.Event()
        self._answers = Answers(self._emit, self._closing, clock)
        self._waiting = Waiting(self._timing, clock, self._closing)
        self._choice = TransportChoice(
            box, self._answers.ask_question, self._emit,
            host_keys_file=host_keys_file, ssh_config=ssh_config, step_s=self._timing.step, clock=clock,
        )  # fmt: skip
        self._factory = transport_factory or self._choice.transport
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._outbox: deque[bytes] = deque()
        self._follows: dict[int, Follow] = {}
        self._topics = {next(self._ids): topic for topic in VALUE_TOPICS}
        self._known_runs = gate.KnownRows()
        self._requests = Requests()
        self._link = Link.CONNECTING
        self._link_detail = "not started"
        self._up = False
        self.transport: Transport | None = None  # of the connection that stands or is being opened
        self._sending_since: float | None = None
        self.reading_s = 0.0
        """Processor time that open connections have taken. Whoever grants credit may slow down a box by it."""
        self._owner = threading.Thread(target=self._own, name=f"box-{box.name}", daemon=True)
        self._watchdog = threading.Thread(target=self._watch, name=f"box-{box.name}-watchdog", daemon=True)

    # ------------------------------------------------------------------------------------------------------ public

    @property
    def link(self) -> Link:
        """Current state of the link."""
        return self._link

    def start(self) -> None:
        """Start connecting; returns immediately."""
        self._owner.start()
        self._watchdog.start()

    def close(self, timeout: float = 5.0) -> None:
        """End the link within about ``timeout`` seconds. Runs are not affected; pending requests fail."""
        self._closing.set()
        self._waiting.end()
        self._answers.close()
        self._wake()
        if self._owner.is_alive() and threading.current_thread() is not self._owner:
            self._owner.join(timeout if self._up else 0.2)
            if self._owner.is_alive() and (transport := self.transport):
                transport.close()  # ends a hanging connect or send
                self._owner.join(timeout)
        self._choice.close()
        self._requests.fail_all("the client is closed")

    def request(self, op: str, timeout: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
        """Send a request; the future ends with the reply or a RemoteError within about ``timeout`` seconds.

        While the link first connects, every request waits for it. Once it is lost, operations that change state fail
        immediately (code ``unreachable``), and those that only read wait. After a reconnect, operations that only read
        and those with an ``idempotency_key`` are sent again. Raises ValueError for an unknown operation.
        """
        if op not in OPERATIONS:
            raise ValueError(f"unknown operation '{op}'")
        pending = Pending(next(self._ids), op, params, self.clock.monotonic() + timeout)
        try:
            parts = encode_parts(pending.frame())
        except (TypeError, ValueError, ProtocolError) as error:
            pending.future.set_exception(RemoteError("bad_request", f"'{op}' cannot be sent: {error}"))
            return pending.future
        with self._lock:
            waits = self._link is Link.CONNECTING or (not pending.changes and self._link in (Link.LOST, Link.STALE))
            accepted = self._up or waits
            if accepted:
                self._requests.add(pending)
            if self._up:
                pending.sent = True
                self._outbox.extend(parts)
        if accepted:
            self._wake()
        else:
            pending.future.set_exception(unreachable(op, self._link_detail or f"the link is {self._link.value}"))
        return pending.future

    def follow(self, path: str, cursor: Cursor | None = None, tail_bytes: int | None = None) -> int:
        """Follow a log (path relative to the root; it need not exist yet); returns the subscription id.

        Starts at ``cursor``, at the first line within the last ``tail_bytes``, or at the beginning. Events:
        LogArrived, LogRotated, LogFailed. The id remains valid across reconnects.
        """
        follow = Follow(next(self._ids), path, cursor, tail_bytes)
        with self._lock:
            self._follows[follow.subscription] = follow
            if self._up:
                self._enqueue(follow.subscribe_frame())
        self._wake()
        return follow.subscription

    def unfollow(self, subscription: int) -> None:
        """Stop following; one more LogArrived may still arrive."""
        with self._lock:
            if self._follows.pop(subscription, None) and self._up:
                self._enqueue({"type": "unsubscribe", "id": subscription})
        self._wake()

    def consumed(self, subscription: int, count: int) -> None:
        """Return credit for ``count`` bytes of a LogArrived; without it the box stops sending."""
        with self._lock:
            follow = self._follows.get(subscription)
            granted = follow.consumed(count) if follow else 0
            if granted and self._up:
                self._enqueue({"type": "credit", "id": subscription, "bytes": granted})
        if granted:
            self._wake()

    def answer_host_key(self, accept: bool) -> None:
        """The user's answer to HostKeyAsked."""
        self._answers.host_key(accept)

    def answer_question(self, answer: str | None) -> None:
        """The user's answer to QuestionAsked; None if it was dismissed. It is neither stored nor logged."""
        self._answers.question(answer)

    def reconnect_now(self) -> None:
        """Retry now: ends a back-off or a refusal; does nothing while connected."""
        self._waiting.end()

    # ------------------------------------------------------------------------------------------------ owner thread

    def _own(self) -> None:
        failures, at_once, asking_again, address, suspected = 0, False, False, "", ""
        while not self._closing.is_set():
            if failures == 0 and not asking_again:
                self._set_link(Link.CONNECTING, f"connecting to {self.box.address()}")
            transport: Transport | None = None
            up_since: float | None = None
            ended: Exception | None = None
            reason, compares_again = "", False
            try:
                transport = self.transport = self._factory(self.box, self._answers.ask_host_key)
                transport.open(greeting(self.box, readonly=self._readonly))
                limit = max(self._timing.step, self._timing.lost_after)  # it is a step of opening, too
                decoder, hello = await_hello(transport, self.box, limit, self._closing, self.clock)
                up_since = self.clock.monotonic()
                self._choice.connected(transport.address, hello)
                self._converse(transport, decoder, hello)
            except Unreachable as error:
                ended = error
                if error.refusal is not None:  # once, it may have been a damaged byte
                    ended = error.refusal if str(error.refusal) == suspected else error
                    compares_again, suspected = not suspected, str(error.refusal)
                reason = gate.message(str(ended))
            except (TryAgain, Refused, ProtocolError) as error:
                ended, reason = error, gate.message(str(error))
            except Exception as error:  # a bug here or in a library must not end the link for good
                ended, reason = error, gate.message(f"{type(error).__name__}: {error}")
            if isinstance(ended, Refused):
                ended = self._choice.after(ended)
                reason = gate.message(str(ended))
            self.transport = None
            self._go_down(reason)
            if transport is not None:
                transport.close()
                address = transport.address or address
            self._waiting.forget()  # before the event that makes a person ask for a retry
            if self._closing.is_set():
                break
            if up_since is not None:
                suspected = ""
            asking_again = False
            if compares_again:  # at once: until then, nobody knows why it failed
                self._set_link(Link.CONNECTING, reason)
                continue
            if isinstance(ended, TryAgain):
                continue
            if isinstance(ended, Refused):
                failures = 0
                asking_again = self._wait_after(ended, reason, address)
                continue
            settled = up_since is not None and self.clock.monotonic() - up_since >= self._timing.settled_after
            failures = FLOODED if isinstance(ended, Flood) else 1 if settled or at_once else failures + 1
            at_once = settled and not isinstance(ended, Flood)
            self._back_off(failures, reason, address, at_once=at_once)
        self._set_link(Link.CLOSED, "closed")
        self._requests.fail_all("the client is closed")

    def _wait_after(self, refusal: Refused, reason: str, address: str) -> bool:
        """Wait until the box is asked again; returns whether that happens without a person."""
        seconds = None if refusal.code in ("host_key", "question") else self._timing.ask_again
        self._set_link(Link.REFUSED, reason, retry_in_s=seconds)
        self._requests.fail_all(reason)
        if self._waiting.wait(seconds, address) or self._closing.is_set():
            return False
        self._set_link(Link.REFUSED, reason, retry_in_s=0.0)
        return True

    def _back_off(self, failures: int, reason: str, address: str, *, at_once: bool) -> None:
        seconds = self._waiting.back_off_s(failures, at_once=at_once)
        self._set_link(Link.LOST, reason, retry_in_s=round(seconds, 1))
        self._waiting.wait(seconds, address)
        if not self._closing.is_set():
            self._set_link(Link.LOST, reason, retry_in_s=0.0)

    def _converse(self, transport: Transport, decoder: Decoder, hello: dict[str, Any]) -> None:
        """Serve one connection until it ends. Raises Unreachable with the reason."""
        self._go_up()
        self._set_link(Link.CONNECTED, transport.describe())
        self._emit(gate.greeting(hello, transport.algorithms()))
        timing, pings = self._timing, Pings()
        allowance = Allowance(
            f"{self.box.name} floods the link: it sent more than this program asked for", clock=self.clock
        )
        heard = self.clock.monotonic()
        last_ping = heard - timing.ping_every
        used_s = time.thread_time()
        self._waiting.was_suspended()
        while not self._closing.is_set():
            now = self.clock.monotonic()
            if now >= last_ping + timing.ping_every:  # as the time of the wait below, or none might pass
                last_ping = now
                with self._lock:
                    self._enqueue({"type": "ping", "n": pings.sent(now)})
            self._flush(transport)
            data = transport.receive(max(0.0, last_ping + timing.ping_every - now))
            now = self.clock.monotonic()
            if data == b"":
                raise Unreachable(transport.error_tail() or f"the connection to {self.box.name} ended")
            if data:
                heard = now
                if self._link is Link.STALE:
                    self._set_link(Link.CONNECTED, transport.describe(), latency_ms=pings.latency_at(now))
                self._take(decoder.feed_sized(data), allowance, pings)
            used_s, before_s = time.thread_time(), used_s
            self.reading_s += used_s - before_s
            if self._waiting.was_suspended():
                raise Unreachable("this machine was suspended")
            silence = now - heard
            if silence >= timing.lost_after:
                raise Unreachable(f"no answer from {self.box.name} for {silence:.0f} s")
            if silence >= timing.stale_after and self._link is not Link.STALE:
                self._set_link(Link.STALE, f"no answer from {self.box.name} for {silence:.0f} s")

    def _flush(self, transport: Transport) -> None:
        while True:
            with self._lock:
                if not self._outbox:
                    return
                batch = b"".join(self._outbox)
                self._outbox.clear()
            self._sending_since = self.clock.monotonic()
            try:
                transport.send(batch)
            finally:
                self._sending_since = None

    def _go_up(self) -> None:
        """Subscribe to the topics and to logs from their cursors, and send the requests that waited."""
        with self._lock:
            for subscription, topic in self._topics.items():
                self._enqueue({"type": "subscribe", "id": subscription, "topic": topic, "params": {}, "credit": 0})
            for follow in self._follows.values():
                self._enqueue(follow.subscribe_frame())
            for pending in self._requests.unsent():
                pending.sent = True
                self._enqueue(pending.frame())
            self._up = True

    def _go_down(self, reason: str) -> None:
        with self._lock:
            self._up = False
            self._link_detail = reason
            self._outbox.clear()
        self._requests.link_lost(reason)

    def _take(self, frames: list[tuple[dict[str, Any], int]], allowance: Allowance, pings: Pings) -> None:
        """Act on received frames. They are released before more are received, because one may take 100 MB."""
        for frame, size in frames:
            gate.frame(frame)
            if frame["type"] == "pong":
                skew_s = pings.skew_s
                if pings.answered(frame["n"], self.clock.monotonic(), frame.get("time"), self.clock.time()):
                    self._set_link(self._link, self._link_detail, latency_ms=pings.latency_ms)
                if pings.skew_s is not None and pings.skew_s != skew_s:
                    self._emit(ClockMeasured(pings.skew_s))
            allowance.spend(self._handle(frame, size))

    def _handle(self, frame: dict[str, Any], size: int) -> int:
        """Act on a frame of ``size`` bytes; returns its cost (see :class:`Allowance`)."""
        kind, cost = frame["type"], size + FRAME_COST
        if kind == "response" and self._requests.answer(frame):
            return 0
        if kind == "update" and (topic := self._topics.get(frame["id"])):
            self._emit(gate.topic_event(topic, frame, self._known_runs if topic == "runs" else None))
        if kind in ("data", "rotated", "closed") and (event := self._log_event(kind, frame)):
            self._emit(event)
            if isinstance(event, LogArrived):
                return max(0, cost - CREDIT_WORTH * len(event.data))
            return ROTATION_COST
        return cost

    def _log_event(self, kind: str, frame: dict[str, Any]) -> LogEvent | None:
        with self._lock:
            follow = self._follows.get(frame["id"])
            if follow is None:
                return None  # unfollowed in the meantime
            if kind == "closed":
                del self._follows[follow.subscription]
            return follow.event(kind, frame)

    # ------------------------------------------------------------------------------------------------- helpers

    def _enqueue(self, frame: dict[str, Any]) -> None:
        """Queue a frame for the current connection; the lock is held."""
        self._outbox.extend(encode_parts(frame))

    def _wake(self) -> None:
        if transport := self.transport:
            transport.wake()

    def _emit(self, event: ClientEvent) -> None:
        try:
            self._on_event(gate.clean_event(event))
        except Exception:  # a bug in the owner must not end the link
            logger.exception("on_event failed for %s", type(event).__name__)

    def _set_link(
        self, state: Link, detail: str = "", latency_ms: float | None = None, retry_in_s: float | None = None
    ) -> None:
        self._link, self._link_detail = state, detail
        self._emit(LinkChanged(state, detail, latency_ms, retry_in_s))

    def _watch(self) -> None:
        """Watchdog for deadlines of requests, and for a send that the network never completes."""
        while not self.clock.wait(self._closing, WATCH_S):
            now = self.clock.monotonic()
            self._requests.expire(now)
            since, transport = self._sending_since, self.transport
            if since is not None and transport is not None and now - since > self._timing.lost_after:
                transport.close()
