"""A stage in a SLURM job: signals that SLURM sends to every process of the job, and several nodes. Torch-free."""

from __future__ import annotations

import os
import socket
import subprocess
from contextlib import suppress

from grpo_train.run_dir.processes import PARENT_VARIABLE
from grpo_train.run_dir.slurm_job import REQUEUE_VARIABLE, current_job, node_count

SCANCEL_WAIT_S = 10.0


def is_shielded() -> bool:
    """Whether stages ignore SIGTERM, see :func:`shielded`."""
    return bool(os.environ.get(REQUEUE_VARIABLE))


def shielded(command: list[str]) -> list[str]:
    """A command that ignores what SLURM announces by signals: at a preemption it sends SIGTERM to every process of the
    job, of which the supervisor alone acts on it (22.05). What is ignored stays so through exec."""
    return ["/bin/sh", "-c", 'trap "" TERM USR1; exec "$@"', "sh", *command] if is_shielded() else command


def end_other_nodes() -> None:
    """SIGKILL to the processes of this job that srun started, on whatever node."""
    job = current_job()
    if job is not None and node_count() > 1:
        with suppress(OSError, subprocess.TimeoutExpired):
            command = ["scancel", "--signal=KILL", job.id]
            subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=SCANCEL_WAIT_S)


def on_each_node(nodes: int) -> list[str]:
    """Start a command once on each node of this job. The processes of another node have another parent."""
    srun = ["srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--kill-on-bad-exit=1"]
    return [*srun, "--cpu-bind=none", "--mpi=none", "env", "-u", PARENT_VARIABLE]


def rendezvous() -> list[str]:
    """torchrun's c10d rendezvous on this node, at a port that is free now."""
    job = current_job()
    assert job is not None
    with socket.socket() as probe:
        probe.bind(("", 0))
        endpoint = f"{socket.gethostname()}:{probe.getsockname()[1]}"
    meeting = ["--rdzv-backend=c10d", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={job.id}.{job.requeues}"]
    return [f"--nnodes={job.nodes}", *meeting]
