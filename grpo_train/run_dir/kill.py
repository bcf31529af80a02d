"""Ending a run by force, and recording that it ended. Standard library only."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.files import last_jsonl, stat_of, touch
from grpo_train.run_dir.machine import account, process_owner
from grpo_train.run_dir.processes import boot_id, find_by_run_id, is_alive, kill_all, run_id_of, signal_quietly
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.status import END_STATES, LIVE_STATES, RunDirError, StatusWriter, writer_of

TERM_WAIT_S = 15.0
"""Time for a supervisor to end its own processes before it gets SIGKILL."""
KILL_WAIT_S = 8.0
"""Time during which processes with the run's ID get SIGKILL repeatedly."""
LOCK_WAIT_S = 3.0
"""Time for the status lock of a process that was just killed to be released."""
NOBODY = 65_534
"""Owner of the superuser's files on most NFS mounts."""


@dataclass(frozen=True)
class KillResult:
    """Outcome of :func:`kill_run`."""

    left: list[int]
    """Processes that survived SIGKILL (blocked in the kernel)."""
    forced: bool
    """Whether SIGTERM was not enough."""
    unrecorded: OSError | None = None
    """Why the end could not be recorded: a full disk."""


def kill_run(
    run: RunDir,
    *,
    by: str,
    supervisors: Sequence[tuple[int, int]] = (),
    patience_s: float = TERM_WAIT_S,
    clock: Clock = CLOCK,
) -> KillResult:
    """End a run now, without saving, and record it.

    SIGTERM to the supervisor named in ``status.json`` and to ``supervisors`` (pid, start ticks); after ``patience_s``
    seconds SIGKILL to them and to every process with the run's ID. ``killed`` is recorded unless the run recorded its
    own end. A disk that takes no record does not prevent the kill: :func:`was_killed` then finds an empty file.
    Raises RunDirError: ``elsewhere`` for a run on another host, ``not_running`` if nothing is running,
    ``not_ours`` for a run of another account.
    """
    observed = run.observed_state()
    if observed.host:
        raise RunDirError(f"{run.name} is running on {observed.host}; kill it there", code="elsewhere")
    status = run.read_status() or {}
    live_here = status.get("boot_id") == boot_id() and status.get("state") in LIVE_STATES
    targets = {target for target in supervisors if is_alive(*target)}
    targets |= recorded_supervisor(run) if live_here else set()
    for pid, _ in targets:
        if (owner := process_owner(pid)) and os.geteuid() != 0:
            message = f"{run.name} is running as {owner}, and {account()} may not end it; on the box: sudo kill {pid}"
            raise RunDirError(message, code="not_ours")
    if not targets and not find_by_run_id(run_id_of(run.path)):
        if live_here and is_alive(*writer_of(status)):
            message = f"{run.status_file} names a process of another account than its own; nothing was ended"
            raise RunDirError(message, code="not_ours")
        if not observed.is_live:
            raise RunDirError(f"{run.name} is not running ({observed.state})", code="not_running")
    try:
        run.log_event("kill_asked", by=by, started_at=started_at(run))
    except OSError:  # a full disk has room for an empty file
        with suppress(OSError):  # a read-only one has not
            touch(run.killed_file)
    result = _terminate_then_kill(run, targets, patience_s, clock)
    error = f"{len(result.left)} processes could not be ended" if result.left else ""
    try:
        record_end(run, "killed", by=by, error=error, clock=clock)
    except OSError as failure:
        return replace(result, unrecorded=failure)
    return result


def recorded_supervisor(run: RunDir) -> set[tuple[int, int]]:
    """(pid, start ticks) of the live process that ``status.json`` names; empty unless its account wrote the file.

    Whoever else may write there could name any process of the account that ends the run.
    """
    recorded = writer_of(run.read_status() or {})
    if recorded[0] <= 1 or not is_alive(*recorded):
        return set()
    writer, owner = stat_of(run.status_file), stat_of(f"/proc/{recorded[0]}")
    if writer is None or owner is None:
        return set()
    squashed = owner.st_uid == 0 and writer.st_uid == NOBODY
    return {recorded} if writer.st_uid == owner.st_uid or squashed else set()


def _terminate_then_kill(run: RunDir, supervisors: set[tuple[int, int]], patience_s: float, clock: Clock) -> KillResult:
    for pid, _ in supervisors:
        signal_quietly(pid, signal.SIGTERM)
    deadline = clock.monotonic() + patience_s
    while any(is_alive(*supervisor) for supervisor in supervisors) and clock.monotonic() < deadline:
        clock.sleep(0.05)
    survivors = [supervisor for supervisor in supervisors if is_alive(*supervisor)]
    for pid, _ in survivors:  # before its workers: it would restart them
        signal_quietly(pid, signal.SIGKILL)
    run_id = run_id_of(run.path)
    strays = find_by_run_id(run_id)
    left = kill_all(run_id, timeout_s=KILL_WAIT_S)
    left += [pid for pid, start in survivors if is_alive(pid, start) and pid not in left]
    return KillResult(left, bool(survivors or strays))


def started_at(run: RunDir) -> str:
    """Time of the run's last start, which tells a resumed run from the one before; "" for one that never started.

    Such times are compared for equality only: the clock may have been set in between.
    """
    return str((run.read_status() or {}).get("started_at") or "")


def was_killed(run: RunDir) -> bool:
    """Whether a kill of a lost run ended it: it was requested since the run started, and no process is left."""
    if not run.killed_file.exists():
        kills = [row for _, row in run.events() if row.get("event") == "kill_asked"]
        if not kills:
            return False
        started, last = started_at(run), kills[-1]
        if last.get("started_at", started) != started:
            return False
        if "started_at" not in last and str(last.get("time", "")) < started:  # of an older version
            return False
    return not find_by_run_id(run_id_of(run.path))


def record_end(
    run: RunDir,
    state: str,
    *,
    by: str,
    error: str = "",
    code: str = "internal",
    details: Mapping[str, Any] | None = None,
    clock: Clock = CLOCK,
) -> bool:
    """Record the end of a run whose supervisor could not; False if an end is recorded already.

    ``details`` are further fields of the error. Raises RunDirError if another process holds the status, OSError.
    """
    deadline = clock.monotonic() + LOCK_WAIT_S
    while True:
        try:
            writer = StatusWriter(run.path)
            break
        except RunDirError:
            if clock.monotonic() > deadline:
                raise
            clock.sleep(0.05)
    with closing(writer):  # for both files, so that two processes do not record one end
        if (run.read_status() or {}).get("state") in END_STATES:
            return False
        if (last_jsonl(run.events_file) or {}).get("event") != state:  # or one was killed before it wrote the status
            run.log_event(state, by=by)
        failure = {"code": code, "summary": error, **(details or {})}
        writer.update(state=state, **({"error": failure} if error else {}))
        run.killed_file.unlink(missing_ok=True)
    return True
