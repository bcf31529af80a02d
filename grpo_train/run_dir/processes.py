"""Processes of a run: finding and ending them. Linux ``/proc``; standard library only.

torchrun starts every worker in a separate session, so a signal to torchrun's process group misses the workers.
Every process of a run therefore carries ``GRPO_RUN_ID`` in its environment. The ID is the run's real path, because
two roots may hold runs of the same name.
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
NODE_VARIABLE = "GRPO_NODE"
"""``MEETING.HOST`` on a machine that takes part in a run of another one, for its failure reports."""
STARTING_S = 1.0
"""A program that the kernel has not started by then is passed over."""
PF_EXITING, PF_KTHREAD = 0x4, 0x200000
"""Flags of ``/proc/PID/stat``: what they mark has no environment any more, or never had one."""


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of a process that survives neither a reused pid nor a reboot."""

    pid: int
    pid_start: int
    """Clock ticks after boot (field 22 of ``/proc/PID/stat``); 0 where there is no ``/proc``."""
    host: str
    boot_id: str


def proc_text(path: str) -> str:
    """A file of the kernel; "" of a process that is gone or another account's, and of a system without this file."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""


def boot_id() -> str:
    """The kernel's identifier of this boot; "" where unavailable."""
    return proc_text("/proc/sys/kernel/random/boot_id").strip()


def start_ticks(pid: int) -> int | None:
    """Start time of a live process in clock ticks after boot; None for a missing or zombie process."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else int(fields[19])


def _stat(pid: int) -> list[str]:
    """Fields of ``/proc/PID/stat`` from the third (the state) on; [] of a process that is gone."""
    return proc_text(f"/proc/{pid}/stat").rpartition(")")[2].split()


def identity() -> ProcessIdentity:
    """Identity of the calling process."""
    pid = os.getpid()
    return ProcessIdentity(pid, start_ticks(pid) or 0, socket.gethostname(), boot_id())


def is_alive(pid: int, start: int) -> bool:
    """Whether the process with this pid and start time is running on this host."""
    return start_ticks(pid) == start


def run_id_of(folder: Path) -> str:
    """Run ID of the run in ``folder``: its real path, the same through every symbolic link."""
    return os.path.realpath(folder)


def run_id_in(pid: int) -> str:
    """Run ID in a process's environment; "" if it has none, is gone, or belongs to another user."""
    return variable_in(pid, RUN_ID_VARIABLE)


def variable_in(pid: int, name: str) -> str:
    """A variable that a process was started with; "" without it, and of a process that is gone or another user's."""
    prefix = os.fsencode(f"{name}=")
    try:
        entries = _environment(pid).split(b"\0")
    except OSError:
        return ""
    return next((os.fsdecode(entry[len(prefix) :]) for entry in entries if entry.startswith(prefix)), "")


def _environment(pid: int) -> bytes:
    """The environment that a process was started with. Raises OSError.

    While the kernel starts its program, after the parent has gone on, it shows none; that is waited for.
    """
    file, give_up_at = Path(f"/proc/{pid}/environ"), time.monotonic() + STARTING_S
    data = file.read_bytes()
    while not data and time.monotonic() < give_up_at:
        was_starting = _is_starting(pid)
        data = file.read_bytes()  # after the question: the program may have been started since the last look
        if not was_starting:
            break
        time.sleep(0.001)
    return data


def _is_starting(pid: int) -> bool:
    """Whether the place of a process's environment in memory is not known yet; an empty environment has a place."""
    fields = _stat(pid)
    return bool(fields) and not int(fields[6]) & (PF_EXITING | PF_KTHREAD) and fields[48] == "0"


def find_by_run_id(run_id: str) -> list[int]:
    """Pids of the other live processes with ``GRPO_RUN_ID=run_id`` in their environment."""
    entries = Path("/proc").iterdir() if Path("/proc").is_dir() else ()
    pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
    return [pid for pid in pids if pid != os.getpid() and run_id_in(pid) == run_id and start_ticks(pid) is not None]


def signal_quietly(pid: int, signal_number: int) -> bool:
    """Send a signal; False if the process is already gone."""
    try:
        os.kill(pid, signal_number)
    except ProcessLookupError:
        return False
    return True


def kill_all(run_id: str, *, timeout_s: float = 10.0) -> list[int]:
    """Send SIGKILL to every other process of a run until none is left; returns pids still there after the timeout."""
    deadline = time.monotonic() + timeout_s
    while left := find_by_run_id(run_id):
        for pid in left:
            signal_quietly(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def die_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent dies (Linux).

    Imports take seconds, so the parent may die before this call: a parent that set ``GRPO_PARENT_PID`` and is no
    longer the parent counts as dead.
    """
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.environ.get(PARENT_VARIABLE, str(os.getppid())) != str(os.getppid()):
        os.kill(os.getpid(), signal.SIGTERM)


def become_subreaper() -> None:
    """Adopt orphaned descendants (Linux child subreaper)."""
    if sys.platform == "linux":
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap_orphans() -> None:
    """Wait for adopted children that have ended, so that none stays a zombie."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
