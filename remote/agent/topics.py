"""Topics that are whole values (the list of runs, tmux sessions, GPUs): sent when they change.

One run that cannot be read *must* not affect the rows of the others. A root that cannot be read is an error, never an
empty list.

A topic that cannot be read *must* say so: its subscribers get the error once, and again when the message changes. It is
read again, and the next value ends the failure. A read that does not return is reported after :data:`LATE_S`.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from grpo_train.run_dir import LIVE_STATES, RunDir, identity, list_older_runs, open_run
from grpo_train.run_dir.configs import Value, config_values
from grpo_train.run_dir.errors import UserError, code_of
from grpo_train.run_dir.files import to_float
from grpo_train.run_dir.gpus import Gpu, GpuReadError, query_gpus
from grpo_train.run_dir.identity import NOTE_FILE
from grpo_train.run_dir.machine import not_readable
from grpo_train.run_dir.processes import run_id_in, variable_in
from grpo_train.run_dir.root import is_run
from grpo_train.run_dir.rows import unreadable_row
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES, Unreadable, read_bytes
from grpo_train.run_dir.workflow_file import NAME as WORKFLOW
from grpo_train.run_dir.workflow_file import is_workflow, workflow_state
from remote.agent.backups import Transfers
from remote.agent.box import BoxContext
from remote.agent.checkpoints import HeldOutResults
from remote.agent.outbox import Outbox
from remote.agent.sessions import Sessions
from remote.agent.slurm import Jobs
from remote.agent.start import EndRecorder
from remote.agent.verdicts import Verdicts
from remote.protocol import VALUE_TOPICS, RemoteError
from remote.protocol.rows import UNREADABLE
from remote.protocol.runs import RunFactsReply, RunFactsRequest


def run_facts(box: BoxContext, request: RunFactsRequest) -> RunFactsReply:
    """One row per run that can be read; what is the same in the configuration of all of them is sent once."""
    rows: list[dict[str, Any]] = []
    for name in request.runs:
        try:
            run = open_run(box.root, name)
            rows.append(
                {
                    "run": name,
                    "config": _config(run) if request.config else {},
                    "metrics": _metrics(run, request.metrics) if request.metrics else {},
                }
            )
        except (UserError, OSError, Unreadable):
            continue  # the list says why
    same: dict[str, Value] = dict(rows[0]["config"]) if len(rows) > 1 else {}
    for row in rows:
        same = {key: value for key, value in same.items() if key in row["config"] and row["config"][key] == value}
    for row in rows:
        row["config"] = {key: value for key, value in row["config"].items() if key not in same}
    return {"facts": rows, "same": same}


def _config(run: RunDir) -> dict[str, Value]:
    written = read_bytes(run.config_file, MAX_RUN_FILE_BYTES)
    return config_values(written.decode(errors="replace")) if written else {}


def _metrics(run: RunDir, names: list[str]) -> dict[str, Any]:
    row = run.last_step_row()
    return {name: row[name] for name in names if to_float(row.get(name)) is not None}


OLDER_RUNS_EVERY_S = 30.0
MAX_ROWS = 10_000
"""The client accepts no longer list."""
MAX_ERROR_CHARACTERS = 1 << 20
"""Of all errors of a list as JSON; of further ones only code and summary are sent, to bound the frame."""
MAX_SUMMARY = 1_000


_ANY = RunDir(Path("run"))
_FILES = [
    os.path.relpath(file, _ANY.path)
    for file in (
        _ANY.status_file,
        _ANY.logs / "train_log.jsonl",
        _ANY.stop_file,
        _ANY.launch_file,
        _ANY.events_file,
        _ANY.path / NOTE_FILE,
        _ANY.path / WORKFLOW,
        _ANY.path / identity.NOTE,
    )
]
"""What a summary is made of, as texts: to join paths takes five times as long as to stat them."""


class RunTable:
    """The rows of all runs."""

    def __init__(self, box: BoxContext) -> None:
        self._root, self._clock = box.root, box.clock
        self._known: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {}
        """Run name to (signature of its files, row)."""
        self._directories: dict[str, RunDir] = {}
        self._older: tuple[float, list[dict[str, Any]]] = (0.0, [])
        self._ends = EndRecorder(box)
        self._held_out = HeldOutResults(box.root, box.clock)
        self._transfers = Transfers(box.root, box.clock)
        self.verdicts = Verdicts(box)
        self._jobs = Jobs(box) if box.settings.scheduler == "slurm" else None

    def rows(self) -> list[dict[str, Any]]:
        """``RunDir.summary()`` of every run, newest first, then the runs of the older layout.

        Each with ``held_out``, ``transfer`` and, once it is known, ``verdict``.

        Raises RemoteError when the root cannot be read.
        """
        rows, known = [], {}
        if self._jobs is not None:
            self._jobs.refresh()
        for run in self._runs():
            name = run.path.name
            signature = _signature(run)
            entry = self._known.get(name)
            # a live state can change while no file does: its process may be gone, its last sign of life too old
            if entry is None or entry[0] != signature or entry[1]["state"] in (*LIVE_STATES, "unreadable"):
                entry = (signature, _summary(run))
            if self._ends.settle(run, entry[1]["state"]):
                entry = (_signature(run), _summary(run))
            known[name] = entry
            row = entry[1] if self._jobs is None else self._jobs.apply(run, entry[1])
            rows.append((row.get("launched_at") or "", name, row))
        self._known = known
        rows.sort(key=lambda row: row[:2], reverse=True)
        held_out, transfers = self._held_out.results(), self._transfers.results()
        listed = [_with(row, "held_out", held_out) for _, _, row in rows]
        verdicts = self.verdicts.results(listed)
        listed = [_with(row, "verdict", verdicts) for row in listed]
        listed += [_with(row, "held_out", held_out) for row in self._older_rows()]
        return _bounded([_with(row, "transfer", transfers) for row in listed])

    def _runs(self) -> list[RunDir]:
        """The runs of the root; those known before are the same objects."""
        folder = self._root / "training_runs"
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries if not entry.name.startswith(".")]
        except FileNotFoundError:
            _check_root(self._root)
            return []
        except NotADirectoryError as error:
            _check_root(self._root)
            raise _root_error(folder, error) from error
        except OSError as error:
            raise _root_error(folder, error) from error
        known = self._directories
        self._directories = {name: known.get(name) or RunDir(folder / name) for name in names}
        return [run for run in self._directories.values() if is_run(run.path)]

    def _older_rows(self) -> list[dict[str, Any]]:
        read_at, rows = self._older
        if not read_at or self._clock.monotonic() - read_at > OLDER_RUNS_EVERY_S:
            try:
                rows = list_older_runs(self._root)
            except OSError:
                rows = []
            self._older = (self._clock.monotonic(), rows)
        return rows


def _with(row: dict[str, Any], key: str, found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {**row, key: found[row["run"]]} if row["run"] in found else row


def _summary(run: RunDir) -> dict[str, Any]:
    try:
        row = run.summary()
        if row["state"] != UNREADABLE and (workflow := workflow_state(run.path)) and is_workflow(workflow["stages"]):
            row["workflow"] = {"stages": len(workflow["stages"]), "done": workflow["done"]}
        return row
    except Exception as error:  # a defect of ours must not cost the other rows either
        return unreadable_row(run.name, f"{type(error).__name__}: {error}"[:MAX_SUMMARY])


def _check_root(root: Path) -> None:
    """Raise RemoteError for a root that exists and is not a directory; one that does not exist yet has no runs."""
    try:
        if not stat.S_ISDIR(os.stat(root).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except FileNotFoundError:
        return
    except OSError as error:
        raise _root_error(root, error) from error


def _root_error(folder: Path, error: OSError) -> RemoteError:
    hint = "mount it, or correct 'root' in boxes.yaml"
    if isinstance(error, PermissionError):
        return RemoteError("bad_root", not_readable(folder), hint)
    if isinstance(error, NotADirectoryError):
        return RemoteError("bad_root", f"{folder} is not a directory", hint)
    return RemoteError(code_of(error), f"{folder}: {error.strerror or error}", hint)


def _bounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most MAX_ROWS rows, whose errors have MAX_ERROR_CHARACTERS in all; the newest keep theirs."""
    left, found = MAX_ERROR_CHARACTERS, []
    for row in rows[:MAX_ROWS]:
        error = row.get("error")
        if error:
            left -= len(json.dumps(error))
        if error and left < 0:
            short = {"code": str(error.get("code", ""))[:100], "summary": str(error["summary"])[:MAX_SUMMARY]}
            row = {**row, "error": short}
        found.append(row)
    return found


def _signature(run: RunDir) -> tuple[Any, ...]:
    """Inode, size and time of each file that the summary is made of."""
    found: list[Any] = []
    folder = os.fspath(run.path)
    for name in _FILES:
        try:
            facts = os.stat(f"{folder}/{name}")
            found.append((facts.st_ino, facts.st_size, facts.st_mtime_ns))
        except OSError:
            found.append(None)
    return tuple(found)


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
