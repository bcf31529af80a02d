"""Topics that are whole values: runs, tmux sessions, GPUs. Sent when they change; nothing runs that nobody watches."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir import LIVE_STATES, RunDir, list_older_runs
from grpo_train.run_dir.processes import run_id_in
from remote.agent.context import Place
from remote.agent.outbox import Outbox
from remote.agent.sessions import Sessions
from remote.protocol import RemoteError

RUNS_EVERY_S = 1.0
SESSIONS_EVERY_S = 2.0
GPU_EVERY_S = 2.0
NO_GPU_EVERY_S = 60.0
REFRESH_S = 10.0
"""``updated_at`` alone is no news; it is passed on so often."""
_GPU_QUERY = "index,name,uuid,utilization.gpu,memory.used,memory.total,power.draw,temperature.gpu"


class RunTable:
    """The list of runs, cheap to ask again: a run whose files did not change is not read again."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: dict[str, tuple[tuple[Any, ...], str, dict[str, Any]]] = {}
        self._older: tuple[float, list[dict[str, Any]]] = (0.0, [])

    def rows(self) -> list[dict[str, Any]]:
        """``RunDir.summary()`` of every run, newest first, then those of the older layout."""
        rows, known = [], {}
        for path in self._folders():
            run = RunDir(path)
            signature = _signature(run)
            old = self._known.get(path.name)
            # a live state, or one that young age alone makes live, can change though no file does
            if old is None or old[0] != signature or old[2]["state"] in LIVE_STATES:
                try:
                    asked = old[1] if old else str(run.read_launch().get("time", ""))
                    old = (signature, asked, run.summary())
                except (OSError, ValueError, KeyError, TypeError) as error:
                    row = {"run": path.name, "state": "unreadable", "layout": "run", "error": str(error), "step": 0}
                    old = (signature, "", row)
            known[path.name] = old
            rows.append((old[1], path.name, old[2]))
        self._known = known
        rows.sort(key=lambda row: row[:2], reverse=True)
        return [row for _, _, row in rows] + self._older_rows()

    def _folders(self) -> list[Path]:
        try:
            with os.scandir(self._place.root / "training_runs") as entries:
                names = [entry.path for entry in entries if not entry.name.startswith(".")]
        except OSError:
            return []
        return [path for path in map(Path, names) if (path / "launch.json").exists()]

    def _older_rows(self) -> list[dict[str, Any]]:
        read_at, rows = self._older
        if not read_at or time.monotonic() - read_at > 30.0:
            try:
                rows = list_older_runs(self._place.root)
            except OSError:
                rows = []
            self._older = (time.monotonic(), rows)
        return rows


def _signature(run: RunDir) -> tuple[Any, ...]:
    """Changes whenever a file that the summary is made of does."""
    found: list[Any] = []
    for path in (run.status_file, run.logs / "train_log.jsonl", run.stop_file):
        try:
            facts = path.stat()
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


def gpu_value() -> dict[str, Any]:
    """``{"gpus": [...], "note": ...}`` from nvidia-smi; a box without one says so."""
    if not shutil.which("nvidia-smi"):
        return {"gpus": [], "note": "no GPU on this box"}
    try:
        rows = _nvidia_smi("--query-gpu=" + _GPU_QUERY)
    except (OSError, subprocess.SubprocessError) as error:
        return {"gpus": [], "note": f"nvidia-smi fails: {_first_line(error)}"}
    try:
        processes = _gpu_processes()
    except (OSError, subprocess.SubprocessError):
        processes = {}
    gpus: list[dict[str, Any]] = []
    for row in rows:
        if len(row) != 8:
            continue
        gpus.append(
            {
                "index": int(row[0]) if row[0].isdigit() else len(gpus),
                "name": row[1],
                "utilization_percent": _number(row[3]),
                "memory_used_mib": _number(row[4]),
                "memory_total_mib": _number(row[5]),
                "power_w": _number(row[6]),
                "temperature_c": _number(row[7]),
                "processes": processes.get(row[2], []),
            }
        )
    return {"gpus": gpus, "note": "" if gpus else "no GPU on this box"}


def _nvidia_smi(query: str) -> list[list[str]]:
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, timeout=15, text=True, errors="replace", check=True)
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]


def _gpu_processes() -> dict[str, list[dict[str, Any]]]:
    """GPU's uuid to the processes on it, with the run each belongs to ("" for strangers)."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in _nvidia_smi("--query-compute-apps=gpu_uuid,pid,used_memory"):
        if len(row) == 3 and row[1].isdigit():
            process = {"pid": int(row[1]), "memory_mib": _number(row[2]), "run": _run_of(int(row[1]))}
            found.setdefault(row[0], []).append(process)
    return found


def _run_of(pid: int) -> str:
    """The name of the run that a process belongs to, or ""."""
    return os.fsencode(run_id_in(pid).rpartition("/")[2]).decode(errors="replace")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None  # "[N/A]", "[Not Supported]"


def _first_line(error: Exception) -> str:
    output = getattr(error, "stdout", None) or getattr(error, "stderr", None) or str(error)
    return str(output).strip().splitlines()[0][:200] if str(output).strip() else type(error).__name__


class Watcher:
    """One thread a watched topic, which ends with its last subscription."""

    def __init__(self, place: Place, outbox: Outbox) -> None:
        self._outbox = outbox
        self._lock = threading.Lock()
        self._subscribers: dict[str, set[int]] = {"runs": set(), "sessions": set(), "gpu": set()}
        self._fresh: dict[str, set[int]] = {"runs": set(), "sessions": set(), "gpu": set()}
        self._news = {topic: threading.Event() for topic in self._subscribers}
        self._running: set[str] = set()
        table, sessions = RunTable(place), Sessions(place)
        self._ask: dict[str, Callable[[], dict[str, Any]]] = {
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
        self._news[topic].set()

    def remove(self, subscription: int) -> None:
        with self._lock:
            for topic, subscribers in self._subscribers.items():
                subscribers.discard(subscription)
                self._fresh[topic].discard(subscription)
                self._news[topic].set()
        self._outbox.forget(subscription)

    def nudge(self, *topics: str) -> None:
        """Look again at once: something here was just changed."""
        for topic in topics:
            self._news[topic].set()

    def _watch(self, topic: str) -> None:
        sent, sent_at, noise = "", 0.0, ""
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
                value = self._ask[topic]()
            except Exception:
                traceback.print_exc()  # a topic that fails once is asked again, later
                self._news[topic].wait(5.0)
                continue
            key, whole = _without_noise(value), json.dumps(value)
            changed = key != sent or (whole != noise and began - sent_at >= REFRESH_S)
            for subscription in subscribers if changed else fresh:
                frame = {"type": "update", "id": subscription, "value": value}
                self._outbox.put_newest(subscription, frame)
            if changed:
                sent, sent_at, noise = key, began, whole
            self._news[topic].wait(_pause(topic, value, time.monotonic() - began))
            self._news[topic].clear()


def _sessions_value(sessions: Sessions) -> dict[str, Any]:
    try:
        return {"sessions": sessions.rows(), "note": ""}
    except RemoteError as error:
        return {"sessions": [], "note": error.message}


def _without_noise(value: dict[str, Any]) -> str:
    quiet = ("updated_at", "run_seconds")
    if "runs" in value:
        value = {"runs": [{k: v for k, v in row.items() if k not in quiet} for row in value["runs"]]}
    return json.dumps(value)


def _pause(topic: str, value: dict[str, Any], cost: float) -> float:
    """How long to wait; a question that is dear (a thousand runs on NFS) is asked less often."""
    every = {"runs": RUNS_EVERY_S, "sessions": SESSIONS_EVERY_S, "gpu": GPU_EVERY_S}[topic]
    if topic == "gpu" and not value["gpus"] and "fails" not in value["note"]:
        every = NO_GPU_EVERY_S
    return max(every, 10 * cost)
