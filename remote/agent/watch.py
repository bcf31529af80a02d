"""Topics that are whole values (runs, tmux sessions, GPUs): sent when they change, read only while watched."""

from __future__ import annotations

import json
import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir import LIVE_STATES, RunDir, list_older_runs
from grpo_train.run_dir.gpus import Gpu, GpuReadError, query_gpus
from grpo_train.run_dir.processes import run_id_in
from remote.agent.context import BoxContext
from remote.agent.outbox import Outbox
from remote.agent.sessions import Sessions
from remote.protocol import VALUE_TOPICS, RemoteError

EVERY_S = {"runs": 1.0, "sessions": 2.0, "gpu": 2.0}
NO_GPU_EVERY_S = 10.0
REFRESH_S = 10.0
"""``updated_at`` alone is not a change; it is passed on this often."""
OLDER_RUNS_EVERY_S = 30.0
RETRY_S = 5.0


class RunTable:
    """The list of runs, cheap to read again: a run whose files did not change is not read again."""

    def __init__(self, box: BoxContext) -> None:
        self._box = box
        self._known: dict[str, tuple[tuple[Any, ...], str, dict[str, Any]]] = {}
        """Run name to (signature of its files, launch time, row)."""
        self._older: tuple[float, list[dict[str, Any]]] = (0.0, [])

    def rows(self) -> list[dict[str, Any]]:
        """``RunDir.summary()`` of every run, newest first, then the runs of the older layout."""
        rows, known = [], {}
        for path in self._folders():
            run = RunDir(path)
            signature = _signature(run)
            entry = self._known.get(path.name)
            # a live state can change while no file does: its process may be gone, its last sign of life too old
            if entry is None or entry[0] != signature or entry[2]["state"] in LIVE_STATES:
                try:
                    launched = entry[1] if entry else str(run.read_launch().get("time", ""))
                    entry = (signature, launched, run.summary())
                except (OSError, ValueError, KeyError, TypeError) as error:
                    row = {"run": path.name, "state": "unreadable", "layout": "run", "error": str(error), "step": 0}
                    entry = (signature, "", row)
            known[path.name] = entry
            rows.append((entry[1], path.name, entry[2]))
        self._known = known
        rows.sort(key=lambda row: row[:2], reverse=True)
        return [row for _, _, row in rows] + self._older_rows()

    def _folders(self) -> list[Path]:
        try:
            with os.scandir(self._box.root / "training_runs") as entries:
                names = [entry.path for entry in entries if not entry.name.startswith(".")]
        except OSError:
            return []
        return [path for path in map(Path, names) if (path / "launch.json").exists()]

    def _older_rows(self) -> list[dict[str, Any]]:
        read_at, rows = self._older
        if not read_at or time.monotonic() - read_at > OLDER_RUNS_EVERY_S:
            try:
                rows = list_older_runs(self._box.root)
            except OSError:
                rows = []
            self._older = (time.monotonic(), rows)
        return rows


def _signature(run: RunDir) -> tuple[Any, ...]:
    """Inode, size and time of each file that the summary is made of."""
    found: list[Any] = []
    for path in (run.status_file, run.logs / "train_log.jsonl", run.stop_file):
        try:
            facts = path.stat()
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def gpu_value() -> dict[str, Any]:
    """``{"gpus": rows, "note": why there are none}``."""
    try:
        rows = [_gpu_row(gpu) for gpu in query_gpus()]
    except GpuReadError as error:
        return {"gpus": [], "note": str(error)}
    return {"gpus": rows, "note": "" if rows else "no GPU on this box"}


def _gpu_row(gpu: Gpu) -> dict[str, Any]:
    processes = [{"pid": pid, "memory_mib": mib, "run": _run_of(pid)} for pid, mib in gpu.pids.items()]
    return {**gpu.sample(), "processes": processes}


def _run_of(pid: int) -> str:
    """Name of the run that a process belongs to, or ""."""
    return os.fsencode(run_id_in(pid).rpartition("/")[2]).decode(errors="replace")


class Watcher:
    """One thread per watched topic; it ends with the topic's last subscription."""

    def __init__(self, box: BoxContext, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lock = threading.Lock()
        self._subscribers: dict[str, set[int]] = {topic: set() for topic in VALUE_TOPICS}
        self._fresh: dict[str, set[int]] = {topic: set() for topic in VALUE_TOPICS}
        """Subscribers that have not been sent a value yet."""
        self._wake = {topic: threading.Event() for topic in VALUE_TOPICS}
        self._running: set[str] = set()
        table, sessions = RunTable(box), Sessions(box)
        self._read: dict[str, Callable[[], dict[str, Any]]] = {
            "runs": lambda: {"runs": table.rows()},
            "sessions": lambda: _sessions_value(sessions),
            "gpu": gpu_value,
        }

    def add(self, topic: str, subscription: int) -> None:
        with self._lock:
            self._subscribers[topic].add(subscription)
            self._fresh[topic].add(subscription)
            if topic not in self._running:
                self._running.add(topic)
                threading.Thread(target=self._watch, args=(topic,), name=f"watch-{topic}", daemon=True).start()
        self._wake[topic].set()

    def remove(self, subscription: int) -> None:
        with self._lock:
            for topic, subscribers in self._subscribers.items():
                subscribers.discard(subscription)
                self._fresh[topic].discard(subscription)
                self._wake[topic].set()
        self._outbox.forget(subscription)

    def refresh(self, *topics: str) -> None:
        """Read topics again now: a request just changed something."""
        for topic in topics:
            self._wake[topic].set()

    def _watch(self, topic: str) -> None:
        sent, sent_at, sent_exactly = "", 0.0, ""
        while not self._outbox.broken.is_set():
            with self._lock:
                subscribers = set(self._subscribers[topic])
                fresh = self._fresh[topic] & subscribers
                self._fresh[topic] -= fresh
                if not subscribers:
                    self._running.discard(topic)
                    return
            began = time.monotonic()
            try:
                value = self._read[topic]()
            except Exception:
                traceback.print_exc()  # a failure to read must not end the topic
                with self._lock:
                    self._fresh[topic] |= fresh
                self._wake[topic].wait(RETRY_S)
                continue
            news, exactly = _without_times(value), json.dumps(value)
            changed = news != sent or (exactly != sent_exactly and began - sent_at >= REFRESH_S)
            for subscription in subscribers if changed else fresh:
                self._outbox.put_newest({"type": "update", "id": subscription, "value": value})
            if changed:
                sent, sent_at, sent_exactly = news, began, exactly
            self._wake[topic].wait(_pause(topic, value, time.monotonic() - began))
            self._wake[topic].clear()


def _sessions_value(sessions: Sessions) -> dict[str, Any]:
    try:
        return {"sessions": sessions.rows(), "note": ""}
    except RemoteError as error:
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
