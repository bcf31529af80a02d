"""``status.json``: state of a run or an evaluation, its single writer, and how to read it. Standard library only.

A lock admits one writer. A reader reports a live state whose process is gone as ``lost``.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.code import commit_of
from grpo_train.run_dir.errors import UserError, code_of
from grpo_train.run_dir.files import (
    atomic_write,
    lock_if_free,
    open_for_writing,
    read_json,
    stat_of,
    time_of,
    touch,
    utc_now,
)
from grpo_train.run_dir.processes import boot_id, identity, is_alive
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES
from grpo_train.run_dir.version import FORMAT, VERSION

LIVE_STATES = frozenset({"starting", "running", "stopping", "evaluating", "stalled", "pending"})
"""``pending`` is never written: a scheduler knows it."""
END_STATES = frozenset({"stopped", "finished", "crashed", "killed"})
REQUEUED = "requeued"
"""A job that has saved and waits for its next start: it neither runs nor has it ended."""
CHECKED_FILE = Path("control", "checked")
"""Touched while the launch of a run is checked."""
LOCK_FILE = ".status.lock"
"""While it is held, it also keeps disk space in reserve: see :func:`write_from_reserve`."""
RESERVE_BYTES, RESERVE_PIECE = 1 << 17, 1 << 14
FRESH_S = 60.0
"""A live state of another host counts while ``updated_at`` is younger than this."""


class RunDirError(UserError):
    """A root, run or checkpoint that cannot be used; the message names it and says what to do."""

    code = "bad_run"


@dataclass(frozen=True)
class ObservedState:
    """State of a run as seen from this host."""

    state: str
    """One of LIVE_STATES, END_STATES, ``requeued`` or ``lost``."""
    host: str = ""
    """Host of a live run, if it is not this one."""

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES


def observe(status: Mapping[str, Any]) -> ObservedState:
    """State in a ``status.json`` as seen from this host: a live state whose process is gone is ``lost``.

    Never raises: a field of another type counts as missing.
    """
    state = str(status.get("state", "lost"))
    if state not in LIVE_STATES:
        return ObservedState(state)
    host, here = str(status.get("host", "")), identity()
    if host == here.host and status.get("boot_id") == here.boot_id:
        alive = is_alive(*writer_of(status))
        return ObservedState(state if alive else "lost")
    if has_rebooted(status):
        return ObservedState("lost")
    return ObservedState(state, host) if is_fresh(status.get("updated_at")) else ObservedState("lost")


def read_state(folder: Path) -> tuple[dict[str, Any] | None, ObservedState]:
    """``status.json`` of a folder and the state in it.

    A process may record its end and exit after its status was read: a lost one is read again.
    """
    for _ in range(2):
        status = read_json(folder / "status.json", MAX_RUN_FILE_BYTES, finite=True)
        observed = observe(status or {})
        if observed.state != "lost":
            break
    return status, observed


def observe_run(run: Path, status: Mapping[str, Any] | None, launch: Mapping[str, Any]) -> ObservedState:
    """State of a run. Without a status it starts: for a while after its launch, and during :func:`being_checked`."""
    if status is not None:
        return observe(status)
    if has_rebooted(launch):
        return ObservedState("lost")
    checked = stat_of(run / CHECKED_FILE)
    is_checked = checked is not None and time.time() - checked.st_mtime < FRESH_S
    return ObservedState("starting" if is_checked or is_fresh(launch.get("time")) else "lost")


@contextmanager
def being_checked(run: Path, clock: Clock = CLOCK) -> Iterator[None]:
    """Show a run as starting while its launch is checked: that may take minutes (a download, a model that is made)."""
    ended, file = threading.Event(), run / CHECKED_FILE

    def show() -> None:
        while not ended.is_set():
            with suppress(OSError):  # a full disk
                touch(file)
                os.utime(file)
            clock.wait(ended, FRESH_S / 6)

    thread = threading.Thread(target=show, name="being checked", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with suppress(OSError):  # a disk that became read-only
            file.unlink(missing_ok=True)


def has_rebooted(written: Mapping[str, Any]) -> bool:
    """Whether a ``status.json`` or ``launch.json`` was written in an earlier boot of this host."""
    now = boot_id()
    return bool(now) and written.get("host") == socket.gethostname() and written.get("boot_id") != now


def writer_of(status: Mapping[str, Any]) -> tuple[int, int]:
    """Pid and start ticks of the process that wrote a status; 0 where a field is missing or has another type."""
    pid, start = (value if type(value := status.get(key)) is int else 0 for key in ("pid", "pid_start"))
    return pid, start


def is_fresh(updated_at: Any) -> bool:
    """Whether a logged time is younger than FRESH_S; False for anything else."""
    at = time_of(updated_at)
    return at is not None and time.time() - at < FRESH_S


def write_from_reserve(folder: Path, write: Callable[[], None]) -> None:
    """Call ``write``; while the disk is full, free a piece of the reserve of a run or evaluation and call it again.

    For what must be recorded: why the run ended. Raises OSError.
    """
    lock = folder / LOCK_FILE
    while True:
        try:
            return write()
        except OSError as error:
            reserve = lock.stat().st_size if lock.exists() else 0
            if code_of(error) != "disk_full" or not reserve:
                raise
            os.truncate(lock, max(0, reserve - RESERVE_PIECE))


class StatusWriter:
    """The single writer of a ``status.json``: holds the directory's lock and replaces the file atomically.

    Raises RunDirError (``run_is_live``) if another process holds the lock.
    """

    def __init__(self, folder: Path, **fixed: Any) -> None:
        self._file = folder / "status.json"
        self._lock = open_for_writing(folder / LOCK_FILE)
        if not lock_if_free(self._lock):
            os.close(self._lock)
            message = f"another process is writing {self._file}; is the run still active?"
            raise RunDirError(message, code="run_is_live")
        with suppress(OSError):  # random, as file systems compress
            os.write(self._lock, os.urandom(max(0, RESERVE_BYTES - os.fstat(self._lock).st_size)))
        written_by = {**asdict(identity()), "version": VERSION, "format": FORMAT, "commit": commit_of()}
        self.fields: dict[str, Any] = {**(read_json(self._file) or {}), **written_by, **fixed}

    def update(self, **fields: Any) -> None:
        """Set fields and ``updated_at``, and write the file. An end is written on a full disk, too."""
        self.fields.update(fields)
        self.fields["updated_at"] = utc_now()
        text = json.dumps(self.fields, indent=1, ensure_ascii=False) + "\n"
        if self.fields.get("state") in END_STATES:
            write_from_reserve(self._file.parent, lambda: atomic_write(self._file, text))
        else:
            atomic_write(self._file, text)

    def close(self) -> None:
        """Release the lock and the reserve."""
        with suppress(OSError):  # a disk that became read-only
            os.truncate(self._lock, 0)
        os.close(self._lock)
