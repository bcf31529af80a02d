"""What SLURM knows about runs: pending jobs, nodes, requeues, and ends that no supervisor could record."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, NamedTuple

from grpo_train.run_dir import LIVE_STATES, RunDir, RunDirError
from grpo_train.run_dir.kill import record_end
from grpo_train.run_dir.safe_json import Unreadable, open_regular
from grpo_train.run_dir.slurm_job import read_job
from grpo_train.run_dir.status import END_STATES, REQUEUED
from remote.agent.context import BoxContext
from remote.agent.slurm.commands import QueuedJob, final_state, queue
from remote.agent.slurm.script import LOG
from remote.protocol import RemoteError

EVERY_S = 2.0
"""The queue is read this often at most: controllers are shared."""
WAIT_S = 2.0
"""The list of runs waits this long for the queue."""
GONE_AFTER_S = 6.0
"""A job that has left the queue has ended after this time: its last status may still be on its way to this host."""
UNKNOWN_AFTER_S = 600.0
"""An end that SLURM does not name by then is recorded without a name: accounting may never learn of it."""
TAIL_LINES, MAX_TAIL_BYTES = 20, 8_192


class Failure(NamedTuple):
    """Error of a run whose job ended by itself."""

    code: str
    words: str


FAILURES = {
    "OUT_OF_MEMORY": Failure(code="out_of_memory", words="out of memory"),
    "TIMEOUT": Failure(code="time_limit", words="the time limit ended it before it had saved"),
    "DEADLINE": Failure(code="time_limit", words="its deadline ended it before it had saved"),
    "NODE_FAIL": Failure(code="node_failed", words="its node failed"),
    "BOOT_FAIL": Failure(code="node_failed", words="its node did not boot"),
    "PREEMPTED": Failure(code="preempted", words="preempted, and not requeued"),
}
"""SLURM's word for the end of a job, and the error."""


class Jobs:
    """The queue, read again every few seconds; where SLURM does not answer, the last one."""

    def __init__(self, box: BoxContext) -> None:
        self._root, self._readonly, self._clock = box.root, box.settings.readonly, box.clock
        self._queue: dict[str, QueuedJob] | None = None
        """None before the first answer."""
        self._read_at = 0.0
        self._is_read = threading.Event()
        """Whether the reading that began last has ended."""
        self._is_read.set()
        self._problem = "squeue has not answered yet"
        """Why the queue could not be read; "" after an answer."""
        self._gone: dict[str, float] = {}
        """Runs whose job is not in the queue, and when each was first seen so."""
        self._asked: dict[str, float] = {}
        """When SLURM was last asked how each of them ended."""

    def refresh(self) -> None:
        """Read the queue, unless that was done a moment ago. A controller that is slow is not waited for."""
        if self._is_read.is_set():
            if self._read_at and self._clock.monotonic() - self._read_at < EVERY_S:
                return
            self._is_read.clear()
            threading.Thread(target=self._read, name="slurm-queue", daemon=True).start()
        self._clock.wait(self._is_read, WAIT_S)

    def _read(self) -> None:
        try:
            self._queue, self._problem = queue(self._root), ""
        except RemoteError as error:
            self._problem = error.message
        finally:
            self._read_at = self._clock.monotonic()
            self._is_read.set()

    def apply(self, run: RunDir, row: dict[str, Any]) -> dict[str, Any]:
        """A row of the list with what SLURM knows of the run; ``unasked`` says why SLURM could not be asked now."""
        if row["state"] == "unreadable":
            return row
        problem = self._problem
        unasked = {"unasked": problem} if problem else {}
        job = (self._queue or {}).get(run.name)
        if job is not None:
            self._gone.pop(run.name, None)
            return {**row, **_seen(run, row, job), **unasked}
        if row["state"] in (*LIVE_STATES, REQUEUED, "lost") and (job_id := read_job(run.path)):
            if problem:
                is_certain = row["state"] in LIVE_STATES and row["state"] != "starting"
                return row if is_certain else {**row, "state": "starting", **unasked}
            now = self._clock.monotonic()
            since = self._gone.setdefault(run.name, now)
            if now - max(since, self._asked.get(run.name, since)) > GONE_AFTER_S and not self._readonly:
                self._asked[run.name] = now
                if _record_end(run, job_id, is_late=now - since > UNKNOWN_AFTER_S):
                    self._gone.pop(run.name, None)
                    return run.summary()
            return {**row, "state": "starting"} if row["state"] == "lost" else row
        return row


def _seen(run: RunDir, row: dict[str, Any], job: QueuedJob) -> dict[str, Any]:
    """The fields of a row that a job in the queue decides."""
    facts = {"id": job.id, "state": job.state, "reason": job.reason, "nodes": job.nodes, "requeues": job.requeues}
    if job.is_pending:
        return {"job": facts, "state": "pending", "host": ""}
    state = row["state"]
    if state in END_STATES or state in (REQUEUED, "lost"):
        written = (run.read_status() or {}).get("job")
        ours = isinstance(written, dict) and (written.get("id"), written.get("requeues")) == (job.id, job.requeues)
        state = state if ours and state != "lost" else "starting"  # the last start wrote it
    return {"job": facts, "state": state, "host": job.nodes if state in LIVE_STATES else ""}


def _record_end(run: RunDir, job_id: str, *, is_late: bool = False) -> bool:
    """Record how a job ended whose supervisor did not, once SLURM knows it; at once where it ``is_late``."""
    word, unasked = final_state(job_id)
    if word is None and not is_late:
        return False
    code, words = FAILURES.get(word or "", Failure(code="internal", words="it ended without a status"))
    try:
        if word == "CANCELLED":
            return record_end(run, "killed", by="SLURM")
        lines = _last_lines(run.logs / LOG)
        last = f": {lines[-1]}" if lines and code == "internal" else ""
        how = f", {word}" if word else f"; SLURM could not be asked how: {unasked}" if unasked else ""
        summary = f"{words} (job {job_id}{how}){last}"
        return record_end(run, "crashed", by="SLURM", error=summary, code=code, details={"console_tail": lines})
    except (RunDirError, OSError):  # a full disk; another process writes the status
        return False


def _last_lines(file: Path) -> list[str]:
    """The last lines of a log; [] without one."""
    try:
        with open_regular(file) as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - MAX_TAIL_BYTES))
            text = log.read(MAX_TAIL_BYTES).decode(errors="replace")
    except (OSError, Unreadable):
        return []
    return [line for line in text.splitlines() if line.strip()][-TAIL_LINES:]
