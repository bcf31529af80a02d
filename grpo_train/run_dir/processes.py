"""Which processes belong to a run, and how they are ended. Linux ``/proc``; standard library only.

torchrun starts every worker in a session of its own, so a signal to torchrun's process group misses the workers.
Every process of a run therefore carries ``GRPO_RUN_ID`` in its environment, and is found by it: the run's place,
since two roots may hold runs of one name.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

RUN_ID_VARIABLE = "GRPO_RUN_ID"
PARENT_VARIABLE = "GRPO_PARENT_PID"


@dataclass(frozen=True)
class ProcessIdentity:
    """A process named so that a reused pid or a rebooted host is never taken for it."""

    pid: int
    start: int
    """Clock ticks after boot (field 22 of ``/proc/PID/stat``); 0 where there is no ``/proc``."""
    host: str
    boot_id: str


def boot_id() -> str:
    """The kernel's identifier of this boot, or "" where there is none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def start_ticks(pid: int) -> int | None:
    """The start time of a live process, or None when there is no such process (a zombie counts as gone)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def identity(pid: int | None = None) -> ProcessIdentity:
    """The identity of a process of this host (default: the caller)."""
    pid = pid or os.getpid()
    return ProcessIdentity(pid, start_ticks(pid) or 0, socket.gethostname(), boot_id())


def is_alive(pid: int, start: int) -> bool:
    """Whether the process with this pid and start time still runs on this host."""
    return start_ticks(pid) == start


def run_id_of(folder: Path) -> str:
    """What marks the processes of the run in ``folder``: its real path, the same through every symbolic link."""
    return os.path.realpath(folder)


def run_id_in(pid: int) -> str:
    """The mark that a process carries, or "" (it carries none, is gone, or is another user's)."""
    prefix = os.fsencode(f"{RUN_ID_VARIABLE}=")
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return ""
    return next((os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)), "")


def find_by_run_id(run_id: str, exclude: frozenset[int] = frozenset()) -> list[int]:
    """Pids of the live processes whose environment says ``GRPO_RUN_ID=run_id``."""
    entries = Path("/proc").iterdir() if Path("/proc").is_dir() else ()
    pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return [pid for pid in pids if pid not in exclude and run_id_in(pid) == run_id and start_ticks(pid) is not None]


def signal_quietly(pid: int, number: int) -> bool:
    """Send a signal; False when the process is gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def sweep(run_id: str, *, exclude: frozenset[int] = frozenset(), timeout_s: float = 10.0) -> list[int]:
    """SIGKILL every process of a run until none is left; returns those that would not go (blocked in the kernel)."""
    deadline = time.monotonic() + timeout_s
    while left := find_by_run_id(run_id, exclude):
        for pid in left:
            signal_quietly(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Have the kernel send this process a signal when its parent dies, however it dies (Linux).

    The parent may be gone before this is called (imports take seconds): a parent that put its pid into
    ``GRPO_PARENT_PID`` and is not the parent any more counts as dead.
    """
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
    if os.environ.get(PARENT_VARIABLE, str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), number)


def become_subreaper() -> None:
    """Make the orphans of this process's children its own children (Linux)."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Collect adopted children that have ended, so that none stays a zombie."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
