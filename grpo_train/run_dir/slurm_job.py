"""The SLURM job that this process runs in, and the file that names the job of a run. Standard library only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import atomic_write, read_json, to_json

JOB_FILE = "slurm.json"
"""In the run directory, ``{"job": id, "submitted_at": UTC time}``: the last job that was submitted for the run."""
SCRIPT_FILE = "slurm.sh"
REQUEUE_VARIABLE = "GRPO_REQUEUE"
"""Set by a batch script that requeues its job when the supervisor exits with REQUEUE_EXIT."""
REQUEUE_EXIT = 75
"""EX_TEMPFAIL of sysexits.h: the run has saved and is to be continued by the same job."""
PREEMPTED = "slurm"
"""Who asks for a stop that ends in a requeue."""


@dataclass(frozen=True)
class OwnJob:
    """A job as its own processes see it."""

    id: str
    requeues: int
    """How often it was requeued; 0 in its first start."""
    nodes: int


def current_job(environment: Mapping[str, str] = os.environ) -> OwnJob | None:
    """The job of this process; None outside of SLURM."""
    found = environment.get("SLURM_JOB_ID", "")
    if not found:
        return None
    requeues, nodes = (_count(environment.get(name, "")) for name in ("SLURM_RESTART_COUNT", "SLURM_JOB_NUM_NODES"))
    return OwnJob(found, requeues, max(1, nodes))


def node_count(asked: int = 1) -> int:
    """Number of machines that train: those of a batch script that we wrote, else ``asked`` (``run.nodes``)."""
    job = current_job() if os.environ.get(REQUEUE_VARIABLE) else None
    return max(job.nodes if job else 1, asked)


def is_earlier_attempt(status: Mapping[str, Any]) -> bool:
    """Whether a ``status.json`` was written by this job before SLURM requeued it: that attempt has ended, whatever the
    status says (its node may have failed)."""
    job, written = current_job(), status.get("job")
    if job is None or not isinstance(written, dict):
        return False
    requeues = written.get("requeues")
    return written.get("id") == job.id and type(requeues) is int and requeues < job.requeues


def job_fields() -> dict[str, Any] | None:
    """The current job for ``status.json``."""
    job = current_job()
    return None if job is None else asdict(job)


def write_job(run: Path, job_id: str, submitted_at: str) -> None:
    """Record the job that was submitted for a run."""
    atomic_write(run / JOB_FILE, to_json({"job": job_id, "submitted_at": submitted_at}) + "\n")


def read_job(run: Path) -> str:
    """Id of the last job that was submitted for a run; "" for a run without one."""
    found = (read_json(run / JOB_FILE) or {}).get("job")
    return found if isinstance(found, str) and found.isascii() and found.isdigit() else ""


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
