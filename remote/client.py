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

**Requests.** Each ends exactly once, with a reply, a refusal or its deadline. One that changes something and has an
idempotency key is sent again after a reconnect, like one that only reads. Its error ``timeout`` means that the box may
have it; ``unreachable``, that it was not sent.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeAlias, TypeVar

from grpo_train.run_dir.clock import CLOCK, Clock
from remote import gate
from remote.base import Refused, TryAgain, Unreachable
from remote.boxes import Box
from remote.events import (
    ClientEvent,
    ClockMeasured,
    FilesLeftOut,
    HostKeyAsked,
    Link,
    LinkChanged,
    LogArrived,
    LogFailed,
    LogRotated,
    QuestionAsked,
)
from remote.protocol import (
    INITIAL_CREDIT,
    OPERATIONS,
    VALUE_TOPICS,
    Cursor,
    Decoder,
    Flood,
    ProtocolError,
    RemoteError,
    data_of,
    encode_parts,
)
from remote.protocol.grants import Grant
from remote.transports.choice import TransportChoice
from remote.transports.transport import (
    CREDIT_WORTH,
    FLOODED,
    FRAME_COST,
    ROTATION_COST,
    Allowance,
    AskHostKey,
    Pings,
    Timing,
    Transport,
    Waiting,
    await_hello,
    greeting,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")
TransportFactory = Callable[[Box, AskHostKey], Transport]
RETURN_AT = INITIAL_CREDIT // 8
"""Credit is returned in portions of at least this many bytes, or once nothing is outstanding."""
HASH_LENGTH = 64
LogEvent: TypeAlias = LogArrived | LogRotated | LogFailed
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
        grant: Grant | None = None,
    ) -> None:
        """``readonly``: the agent refuses every request that changes state (code ``read_only``). ``grant``: it refuses
        what an assistant was not granted (``not_granted``)."""
        self.box, self._readonly, self._grant, self.clock = box, readonly, grant, clock
        self._on_event = on_event
        self._timing = timing or Timing()
        self._closing = threading.Event()
        self._answers = UserAnswers(self._emit, self._closing, clock)
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
        self._requests = PendingRequests()
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
        """Start connecting, once; returns immediately."""
        if self._owner.ident is None:
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

    def request(self, op: str, reply_s: float = 30.0, **params: Any) -> Future[dict[str, Any]]:
        """Send a request; the future ends with the reply or a RemoteError within about ``reply_s`` seconds.

        While the link first connects, every request waits for it. Once it is lost, operations that change state fail
        immediately (code ``unreachable``), and those that only read wait. After a reconnect, operations that only read
        and those with an ``idempotency_key`` are sent again. Raises ValueError for an unknown operation.
        """
        if op not in OPERATIONS:
            raise ValueError(f"unknown operation '{op}'")
        pending = Pending(next(self._ids), op, params, self.clock.monotonic() + reply_s)
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
                transport.open(greeting(self.box, readonly=self._readonly, grant=self._grant))
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
        self._emit(gate.read_greeting(hello, transport.algorithms()))
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
        if kind == "response":
            if files := gate.left_out(frame):
                self._emit(FilesLeftOut(files))
            if self._requests.answer(frame):
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


@dataclass
class Pending:
    """One request."""

    id: int
    op: str
    params: dict[str, Any]
    deadline: float
    future: Future[dict[str, Any]] = field(default_factory=Future)
    sent: bool = False
    """On the present connection."""
    sent_before: bool = False

    @property
    def changes(self) -> bool:
        """Whether it changes something; if not, it waits for a lost link."""
        return OPERATIONS[self.op].changes(self.params)

    @property
    def repeatable(self) -> bool:
        """Whether it is sent again after a reconnect."""
        return not self.changes or bool(self.params.get("idempotency_key") and (self.sent or self.sent_before))

    def frame(self) -> dict[str, Any]:
        return {"type": "request", "id": self.id, "op": self.op, "params": self.params}


class PendingRequests:
    """The table of pending requests. Futures are completed outside the lock: their callbacks may send new requests."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}

    def add(self, pending: Pending) -> None:
        pending.future.set_running_or_notify_cancel()  # cannot be canceled from here on
        with self._lock:
            self._pending[pending.id] = pending

    def answer(self, frame: dict[str, Any]) -> bool:
        """Complete the request of a ``response`` frame; returns whether there was one that waited for it."""
        with self._lock:
            pending = self._pending.pop(frame["id"], None)
        if pending is None:
            return False
        try:
            reply = gate.reply(pending.op, frame)
        except RemoteError as error:
            pending.future.set_exception(error)
        else:
            pending.future.set_result(reply)
        return True

    def unsent(self) -> list[Pending]:
        """Requests to send on a new connection, oldest first."""
        with self._lock:
            return [pending for pending in self._pending.values() if not pending.sent]

    def link_lost(self, reason: str) -> None:
        """Keep repeatable requests for the next connection; fail the others, whose outcome is unknown."""
        with self._lock:
            lost = [p for p in self._pending.values() if not p.repeatable]
            for pending in lost:
                del self._pending[pending.id]
            for pending in self._pending.values():
                pending.sent_before |= pending.sent
                pending.sent = False
        for pending in lost:
            if not pending.sent:
                pending.future.set_exception(unreachable(pending.op, reason))
                continue
            pending.future.set_exception(
                RemoteError(
                    "unreachable",
                    f"the link broke before '{pending.op}' was answered: {reason}",
                    "the outcome is unknown; check the runs once the link is back",
                )
            )

    def fail_all(self, reason: str) -> None:
        with self._lock:
            lost = list(self._pending.values())
            self._pending.clear()
        for pending in lost:
            unknown = pending.changes and (pending.sent or pending.sent_before)
            pending.future.set_exception((unanswered if unknown else unreachable)(pending.op, reason))

    def expire(self, now: float) -> None:
        """Fail requests whose deadline has passed."""
        with self._lock:
            late = [pending for pending in self._pending.values() if pending.deadline <= now]
            for pending in late:
                del self._pending[pending.id]
        for pending in late:
            if pending.changes and (pending.sent or pending.sent_before):
                error = unanswered(pending.op, "no answer in time")
            elif pending.sent:
                error = RemoteError("timeout", f"'{pending.op}' was not answered in time", "retry")
            else:
                error = unreachable(pending.op, "the link did not come up in time")
            pending.future.set_exception(error)


def unreachable(op: str, reason: str) -> RemoteError:
    return RemoteError(
        "unreachable",
        f"'{op}' was not sent: {reason}",
        "runs on the box are not affected; the link reconnects automatically",
    )


def unanswered(op: str, reason: str) -> RemoteError:
    return RemoteError("timeout", f"'{op}' was sent but not answered: {reason}", "check the runs once the link is back")


@dataclass
class Follow:
    """One followed log. It outlives connections and is subscribed under the same id on each."""

    subscription: int
    path: str
    cursor: Cursor | None
    tail_bytes: int | None
    unconsumed: int = 0
    """Bytes passed to the owner and not yet consumed; deducted from the credit, also after a reconnect."""
    returnable: int = 0
    credit: int = 0
    """Bytes that the box may still send on this connection."""

    def subscribe_frame(self) -> dict[str, Any]:
        """The frame that subscribes to everything after the cursor, on a new connection."""
        self.returnable = 0
        self.credit = max(0, INITIAL_CREDIT - self.unconsumed)
        params: dict[str, Any] = {"path": self.path, "cursor": self.cursor.to_json() if self.cursor else None}
        if self.tail_bytes is not None:
            params["tail_bytes"] = self.tail_bytes
        return {"type": "subscribe", "id": self.subscription, "topic": "log", "params": params, "credit": self.credit}

    def event(self, kind: str, frame: dict[str, Any]) -> LogEvent:
        """Accept a ``data``, ``rotated`` or ``closed`` frame. Raises ProtocolError."""
        if kind == "data":
            return self.data(frame)
        return self.rotated() if kind == "rotated" else self.failed(frame)

    def data(self, frame: dict[str, Any]) -> LogArrived:
        """Accept a ``data`` frame.

        Raises Flood for more bytes than were granted, and ProtocolError when it does not continue where the previous
        one ended.
        """
        data, offset = data_of(frame), int(frame["offset"])
        self.credit -= len(data)
        if self.credit < 0:
            raise Flood(f"{self.path}: {-self.credit} bytes more than the credit that was granted")
        known = self.cursor
        if known is not None and offset != known.offset:
            raise ProtocolError(f"{self.path}: expected byte {known.offset}, received {offset}")
        self.cursor = _cursor_after(frame, known or Cursor(self.path), offset + len(data))
        self.unconsumed += len(data)
        return LogArrived(self.subscription, self.path, offset, data, self.cursor)

    def rotated(self) -> LogRotated:
        self.cursor = Cursor(self.path)
        return LogRotated(self.subscription, self.path)

    def failed(self, frame: dict[str, Any]) -> LogFailed:
        return LogFailed(self.subscription, self.path, gate.refusal(frame.get("error")).message)

    def consumed(self, count: int) -> int:
        """Record that the owner consumed ``count`` bytes; returns the credit to return now (often 0)."""
        count = min(count, self.unconsumed)
        self.unconsumed -= count
        self.returnable += count
        if self.returnable < RETURN_AT and self.unconsumed:
            return 0
        granted, self.returnable = self.returnable, 0
        self.credit += granted
        return granted


def _cursor_after(frame: dict[str, Any], known: Cursor, offset: int) -> Cursor:
    """The cursor after a ``data`` frame. Raises ProtocolError."""
    try:
        length, digest = frame.get("head") or (known.head_length, known.head_sha256)
        device, inode = frame.get("file") or (known.device, known.inode)
        cursor = Cursor(
            known.path, offset, int(length), str(digest), str(frame.get("tail", "")), int(device), int(inode)
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ProtocolError(f"malformed 'data' frame: {error}") from error
    if len(cursor.head_sha256) > HASH_LENGTH or len(cursor.tail_sha256) > HASH_LENGTH:
        raise ProtocolError("malformed 'data' frame: a hash is too long")
    return cursor


class _Answer(Generic[T]):
    """One answer that a thread waits for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._value: T | None = None
        self._given = threading.Event()

    def give(self, value: T | None) -> None:
        self._value = value
        self._given.set()

    def clear(self) -> None:
        self._value = None
        self._given.clear()

    def wait(self) -> T | None:
        """The answer, which is not kept."""
        self._clock.wait(self._given)
        value, self._value = self._value, None
        return value


class UserAnswers:
    """The user's answers to one client's questions. They are neither stored nor logged."""

    def __init__(self, emit: Callable[[ClientEvent], None], closing: threading.Event, clock: Clock) -> None:
        self._emit = emit
        self._closing = closing
        self._host_key: _Answer[bool] = _Answer(clock)
        self._question: _Answer[str] = _Answer(clock)

    def host_key(self, accept: bool) -> None:
        """The answer to HostKeyAsked."""
        self._host_key.give(accept)

    def question(self, answer: str | None) -> None:
        """The answer to QuestionAsked; None if it was dismissed."""
        self._question.give(answer)

    def ask_host_key(self, question: HostKeyAsked) -> bool:
        """Ask, and wait for the answer; False once the client closes."""
        self._host_key.clear()
        self._emit(question)
        return not self._closing.is_set() and bool(self._host_key.wait()) and not self._closing.is_set()

    def ask_question(self, question: QuestionAsked) -> str | None:
        """Ask, and wait for the answer; None at once for a notice, and once the client closes."""
        self._question.clear()
        self._emit(question)
        if question.kind == "touch" or self._closing.is_set():
            return None
        answer = self._question.wait()
        return None if self._closing.is_set() else answer

    def close(self) -> None:
        """End the waits; ``closing`` is set."""
        self._host_key.give(None)
        self._question.give(None)
