"""Ending a run by force, and writing down that it ended. Standard library only: the agent's bundle carries it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_train.run_dir.processes import find_by_run_id, is_alive, run_id_of, signal_quietly, sweep
from grpo_train.run_dir.run import RunDir
from grpo_train.run_dir.status import RunDirError, StatusWriter

TERM_WAIT_S = 15.0
"""What a supervisor gets to end its own processes before it is killed."""
SWEEP_S = 8.0
"""How long processes that carry the run's id are killed again and again."""
LOCK_WAIT_S = 3.0
"""The lock of a process that was just killed may take a moment to go."""


@dataclass(frozen=True)
class Ended:
    """What it took."""

    left: list[int]
    """Processes that even SIGKILL did not end (blocked in the kernel)."""
    forced: bool
    """SIGTERM was not enough."""


def end_by_force(run: RunDir, supervisors: Sequence[tuple[int, int]], patience_s: float = TERM_WAIT_S) -> Ended:
    """SIGTERM to the supervisors (pid, start ticks) and time to obey; then SIGKILL to them and to every process that
    carries the run's id."""
    for pid, start in supervisors:
        if is_alive(pid, start):
            signal_quietly(pid, signal.SIGTERM)
    deadline = time.monotonic() + patience_s
    while any(is_alive(*supervisor) for supervisor in supervisors) and time.monotonic() < deadline:
        time.sleep(0.05)
    survivors = [supervisor for supervisor in supervisors if is_alive(*supervisor)]
    for pid, _ in survivors:  # before its workers: it would restart them
        signal_quietly(pid, signal.SIGKILL)
    me = frozenset({os.getpid()})
    run_id = run_id_of(run.path)
    strays = find_by_run_id(run_id, me)
    left = sweep(run_id, exclude=me, timeout_s=SWEEP_S)
    left += [pid for pid, start in survivors if is_alive(pid, start) and pid not in left]
    return Ended(left, bool(survivors or strays))


def write_end(run: RunDir, state: str, *, by: str, error: str | None = None, exit_code: int | None = None) -> None:
    """Write a run's end where its supervisor could not. Raises RunDirError when somebody else holds the status."""
    deadline = time.monotonic() + LOCK_WAIT_S
    while True:
        try:
            writer = StatusWriter(run.path)
            break
        except RunDirError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
    fields = {"error": {"summary": error} if error else None, "exit_code": exit_code}
    try:
        writer.update(state=state, **{key: value for key, value in fields.items() if value is not None})
    finally:
        writer.close()
    run.log_event(state, by=by)
