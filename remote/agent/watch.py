"""Topics that are whole values (runs, tmux sessions, GPUs): sent when they change, read only while watched.

A topic that cannot be read *must* say so: its subscribers get the error once, and again when the message changes. It is
read again, and the next value ends the failure. A read that does not return is reported after :data:`LATE_S`.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

from grpo_train.run_dir.errors import code_of
from grpo_train.run_dir.gpus import Gpu, GpuReadError, query_gpus
from grpo_train.run_dir.processes import run_id_in, variable_in
from remote.agent.context import BoxContext
from remote.agent.outbox import Outbox
from remote.agent.run_table import RunTable
from remote.agent.sessions import Sessions
from remote.protocol import VALUE_TOPICS, RemoteError

EVERY_S = {"runs": 1.0, "sessions": 2.0, "gpu": 2.0}
NO_GPU_EVERY_S = 10.0
REFRESH_S = 10.0
"""``updated_at`` alone is not a change; it is passed on this often."""
RETRY_S = 5.0
MAX_CHARACTERS = 12 << 20
"""Of a value; a longer one would not fit into a frame."""
LATE_S = 10.0
"""A read that takes longer is reported."""
HEAD_START_S = 1.0
"""The other topics wait this long for the first list of runs, which is what the user looks for: to import libtmux takes
as long as to read 200 runs."""


def gpu_value() -> dict[str, Any]:
    """``{"gpus": rows, "note": why there are none}``. Raises RemoteError where the driver does not answer."""
    try:
        rows = [_gpu_row(gpu) for gpu in query_gpus()]
    except GpuReadError as error:
        raise RemoteError(error.code, str(error)) from error
    return {"gpus": rows, "note": "" if rows else "no GPU on this box"}


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    processes = gpu.pids and [
        {"pid": pid, "memory_mib": mib, "run": _run_of(pid), "rank": _rank_of(pid)} for pid, mib in gpu.pids.items()
    ]
    return {**gpu.sample(), "free": gpu.free, "processes": processes or (None if gpu.pids is None else [])}


def _rank_of(pid: int) -> int | None:
    """Rank of a process that torchrun started."""
    text = variable_in(pid, "RANK")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= 6 else None


def _run_of(pid: int) -> str:
    """Name of the run that a process belongs to, or ""."""
    return os.fsencode(run_id_in(pid).rpartition("/")[2]).decode(errors="replace")


class _Topic:
    """One topic: its subscribers, and what they have been sent."""

    def __init__(self, name: str, read: Callable[[], dict[str, Any]]) -> None:
        self.name, self.read = name, read
        self.subscribers: set[int] = set()
        self.fresh: set[int] = set()
        """Subscribers that have not been sent anything yet."""
        self.wake = threading.Event()
        self.running = False
        self.reading_since: float | None = None
        """When the read in progress began."""
        self.failure = ""
        """The error last sent, as JSON; "" after a value."""
        self.value: dict[str, Any] | None = None
        """The value last sent."""
        self.sent, self.sent_at = "", 0.0
        """As JSON without its times, and when."""


class Watcher:
    """One thread per watched topic, which ends with the topic's last subscription, and one that reports late reads."""

    def __init__(self, box: BoxContext, outbox: Outbox) -> None:
        self._outbox, self._clock = outbox, box.clock
        self._sources = {"runs": f"the disk with {box.root}", "sessions": "tmux", "gpu": "the GPU driver"}
        self._lock = threading.Lock()
        self._listed = threading.Event()
        """Whether the list of runs has been read once, or could not be."""
        table, sessions = RunTable(box), Sessions(box)
        reads: dict[str, Callable[[], dict[str, Any]]] = {
            "runs": lambda: {"runs": table.rows()},
            "sessions": lambda: _sessions_value(sessions),
            "gpu": gpu_value,
        }
        self._topics = {name: _Topic(name, reads[name]) for name in VALUE_TOPICS}
        self._guarded = False

    def add(self, topic: str, subscription: int) -> None:
        watched = self._topics[topic]
        with self._lock:
            watched.subscribers.add(subscription)
            watched.fresh.add(subscription)
            if not watched.running:
                watched.running = True
                threading.Thread(target=self._watch, args=(watched,), name=f"watch-{topic}", daemon=True).start()
            if not self._guarded:
                self._guarded = True
                threading.Thread(target=self._report_late_reads, name="watch-late", daemon=True).start()
        watched.wake.set()

    def remove(self, subscription: int) -> None:
        with self._lock:
            for topic in self._topics.values():
                topic.subscribers.discard(subscription)
                topic.fresh.discard(subscription)
                topic.wake.set()
        self._outbox.forget(subscription)

    def refresh(self, *topics: str) -> None:
        """Read topics again now: a request just changed something."""
        for topic in topics:
            self._topics[topic].wake.set()

    def _watch(self, topic: _Topic) -> None:
        if topic.name != "runs" and self._topics["runs"].running:
            self._clock.wait(self._listed, HEAD_START_S)
        while not self._outbox.broken.is_set():
            with self._lock:
                if not topic.subscribers:
                    topic.running = False
                    return
                topic.reading_since = began = self._clock.monotonic()
            try:
                value = topic.read()
                with self._lock:
                    topic.reading_since = None
                    self._send_value(topic, value, began)
                pause = _pause(topic.name, value, self._clock.monotonic() - began)
            except Exception as error:  # a failure to read must not end the topic
                if not isinstance(error, (RemoteError, OSError)):
                    traceback.print_exc()
                with self._lock:
                    topic.reading_since = None
                    self._send_failure(topic, _as_error(error))
                pause = RETRY_S
            if topic.name == "runs":
                self._listed.set()
            self._clock.wait(topic.wake, pause)
            topic.wake.clear()

    def _report_late_reads(self) -> None:
        """A read that hangs on a disk cannot be ended; its topic's subscribers are told."""
        while not self._clock.wait(self._outbox.broken, LATE_S / 10):
            with self._lock:
                for topic in self._topics.values():
                    since = topic.reading_since
                    if since is not None and self._clock.monotonic() - since > LATE_S:
                        message = f"{self._sources[topic.name]} has not answered for {LATE_S:.0f} s"
                        self._send_failure(topic, RemoteError("io", message, "it is still being waited for"))

    def _send_value(self, topic: _Topic, value: dict[str, Any], began: float) -> None:
        """Send a changed value to every subscriber, an unchanged one to those without it; the caller holds the lock."""
        if value == topic.value and not topic.failure:  # rows that did not change are the same objects
            self._send(topic, False, value=value)
            return
        news, length = _without_times(value), len(json.dumps(value))
        if length > MAX_CHARACTERS:
            raise RemoteError("flood", f"topic '{topic.name}' has {length} characters (limit {MAX_CHARACTERS})")
        changed = news != topic.sent or (value != topic.value and began - topic.sent_at >= REFRESH_S)
        self._send(topic, changed or bool(topic.failure), value=value)
        topic.failure = ""
        if changed:
            topic.value, topic.sent, topic.sent_at = value, news, began

    def _send_failure(self, topic: _Topic, error: RemoteError) -> None:
        """Send an error once, and again when its message changes; the caller holds the lock."""
        failure = error.to_json()
        text = json.dumps(failure)
        self._send(topic, text != topic.failure, error=failure)
        topic.failure = text

    def _send(self, topic: _Topic, everyone: bool, **content: dict[str, Any]) -> None:
        for subscription in topic.subscribers if everyone else topic.fresh:
            self._outbox.put_newest({"type": "update", "id": subscription, **content})
        topic.fresh.clear()


def _as_error(error: Exception) -> RemoteError:
    if isinstance(error, RemoteError):
        return error
    if isinstance(error, OSError):
        file = f"{error.filename}: " if error.filename else ""
        return RemoteError(code_of(error), f"{file}{error.strerror or error}")
    return RemoteError(code_of(error), f"the agent failed: {type(error).__name__}: {error}", "please report this")


def _sessions_value(sessions: Sessions) -> dict[str, Any]:
    try:
        return {"sessions": sessions.rows(), "note": ""}
    except RemoteError as error:
        if error.code != "no_tmux":
            raise
        return {"sessions": [], "note": error.message}


def _without_times(value: dict[str, Any]) -> str:
    times = ("updated_at", "run_seconds")
    if "runs" in value:
        value = {"runs": [{key: item for key, item in row.items() if key not in times} for row in value["runs"]]}
    return json.dumps(value)


def _pause(topic: str, value: dict[str, Any], cost_s: float) -> float:
    """Seconds until the next read; an expensive one (1,000 runs on NFS) is repeated less often."""
    every = NO_GPU_EVERY_S if topic == "gpu" and not value["gpus"] else EVERY_S[topic]
    return max(every, 10 * cost_s)
