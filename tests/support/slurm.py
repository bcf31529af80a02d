"""A SLURM cluster on this machine: munge, a controller, two nodes; everything in one folder. Needs root.

Partitions: ``low`` (default; its jobs are preempted by those of ``high``, after a grace time), ``high``, ``short``
(jobs of one minute at most). A job that uses more memory than its ``--mem`` is killed by its node's daemon, which looks
every 30 s (``--acctg-freq``); the default is more than any job needs. It runs without cgroups.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from remote.events import RunsReported
from tests.support.agent import Recorder, eventually
from tests.support.patience import PATIENCE
from tests.support.ports import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "scancel", "srun")
INSTALL = "apt-get install -y --no-install-recommends slurm-wlm munge"

CONFIG = """\
ClusterName=lab
SlurmctldHost=localhost({address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=3
CryptoType=crypto/munge
SlurmctldPort={controller_port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmdSpoolDir={folder}/%n
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=15
KillWait={kill_wait_s}
MessageTimeout=60
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=20000
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
EnforcePartLimits=ALL
AccountingStorageType={accounting}
{accounting_host}
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherParams=OverMemoryKill
NodeName=node1 NodeHostname={host} NodeAddr={address} Port={port_1} CPUs=4 RealMemory=200000 State=UNKNOWN
NodeName=node2 NodeHostname={host} NodeAddr={address} Port={port_2} CPUs=4 RealMemory=200000 State=UNKNOWN
PartitionName=low Nodes=node1,node2 Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace_s}
PartitionName=high Nodes=node1,node2 PriorityTier=10 PreemptMode=OFF
PartitionName=short Nodes=node1,node2 MaxTime=1 PriorityTier=1
"""


def missing() -> str:
    """Why there can be no cluster here; "" if there can."""
    absent = [name for name in PROGRAMS if not shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")]
    if absent:
        return f"{', '.join(absent)} not installed: {INSTALL}"
    return "" if os.geteuid() == 0 else "a cluster on one machine needs root"


class Slurm:
    """A running cluster. ``environment`` makes SLURM's commands use it."""

    def __init__(self, folder: Path, *, grace_s: int = 60, kill_wait_s: int = 5, accounting_port: int = 0) -> None:
        self.folder = folder
        self.config = folder / "slurm.conf"
        self.environment = {"SLURM_CONF": str(self.config)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = free_ports(3)
        values = {
            "folder": folder,
            "host": socket.gethostname(),
            "address": "127.0.0.1",
            "controller_port": ports[0],
            "port_1": ports[1],
            "port_2": ports[2],
            "grace_s": grace_s,
            "kill_wait_s": kill_wait_s,
            "accounting": "accounting_storage/slurmdbd" if accounting_port else "accounting_storage/none",
            "accounting_host": f"AccountingStorageHost=127.0.0.1\nAccountingStoragePort={accounting_port}\n"
            f"AccountingStoragePass={folder}/munge.socket\n"
            "AccountingStorageEnforce=associations"
            if accounting_port
            else "",
        }
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o755)
        for name in ("state", "node1", "node2"):
            (folder / name).mkdir(exist_ok=True)
        self.config.write_text(CONFIG.format(**values))

    def start(self) -> None:
        """Start everything; returns when both nodes are idle."""
        if "munge" not in self._processes:
            self.start_munge()
        self.start_controller()
        self.start_node("node1")
        self.start_node("node2")
        _wait(self._nodes_are_idle, "two idle nodes")

    def _nodes_are_idle(self) -> bool:
        return self.run("sinfo", "-h", "-N", "-p", "low", "-o", "%t").split() == ["idle"] * 2

    def start_munge(self) -> None:
        key = self.folder / "munge.key"
        if not key.exists():
            key.write_bytes(secrets.token_bytes(128))
            key.chmod(0o400)
        self.start_program(
            "munge",
            "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket",
            f"--pid-file={self.folder}/munge.pid", f"--seed-file={self.folder}/munge.seed",
            f"--log-file={self.folder}/munge.log",
        )  # fmt: skip
        _wait(lambda: (self.folder / "munge.socket").exists(), "munge")

    def start_controller(self) -> None:
        self.start_program("slurmctld", "slurmctld", "-D", "-f", str(self.config))
        _wait(lambda: "UP" in self.run("scontrol", "ping", check=False), "the controller")

    def start_node(self, name: str) -> None:
        self.start_program(name, "slurmd", "-D", "-N", name, "-f", str(self.config))

    def end(self, name: str, number: int = signal.SIGTERM) -> None:
        """End ``slurmctld`` or a node's daemon."""
        process = self._processes.pop(name)
        process.send_signal(number)
        process.wait(timeout=30 * PATIENCE)

    def stop(self) -> None:
        """Cancel every job and end every daemon."""
        if "slurmctld" in self._processes:
            self.clear()
        for name in reversed(list(self._processes)):
            self.end(name, signal.SIGTERM if name in ("munge", "mariadbd") else signal.SIGKILL)

    def clear(self) -> None:
        """Cancel every job, and wait until none is left."""
        self.run("scancel", "--signal=KILL", "--full", *self.jobs(), check=False)
        self.run("scancel", *self.jobs(), check=False)
        self.wait_for_jobs(0)

    def jobs(self) -> list[str]:
        """Ids of the jobs that are pending or running."""
        return self.run("squeue", "-h", "-o", "%A", check=False).split()

    def wait_for_jobs(self, count: int) -> None:
        """Wait until this number of jobs is pending or running."""
        _wait(lambda: len(self.jobs()) == count, f"{count} jobs")

    def job(self, job_id: str) -> dict[str, str]:
        """Fields of a job as ``scontrol show job`` prints them."""
        words = self.run("scontrol", "-o", "show", "job", job_id).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def submit(self, *options: str, command: str = "sleep 600") -> str:
        """Submit a job; returns its id."""
        return self.run("sbatch", "--parsable", "--output=/dev/null", *options, f"--wrap={command}").strip()

    def start_now(self, job_id: str) -> None:
        """Let a requeued job start; SLURM would wait 2 minutes."""
        self.run("scontrol", "update", f"JobId={job_id}", "StartTime=now")

    def fail(self, node: str, pids: Sequence[int], supervisor: int) -> None:
        """Kill a node's daemon and everything that it runs; the controller is told that it is down."""
        self.end(node, signal.SIGKILL)
        parents = [_parent(supervisor)]  # the batch script, then its slurmstepd
        parents.append(_parent(parents[0]))
        for pid in (*reversed(parents), supervisor, *pids):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=failed")

    def repair(self, node: str) -> None:
        """Start a node's daemon again; returns when both nodes are idle. No job may be left."""
        self.start_node(node)
        self.run("scontrol", "update", f"NodeName={node}", "State=RESUME", check=False)
        _wait(self._nodes_are_idle, "two idle nodes")

    def run(self, *argv: str, check: bool = True) -> str:
        done = subprocess.run(argv, env={**os.environ, **self.environment}, capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, f"{argv}: {done.stderr}"
        return done.stdout

    def start_program(self, name: str, *argv: str) -> None:
        program = shutil.which(argv[0], path=f"{os.environ['PATH']}:/usr/sbin")
        assert program, missing()
        with (self.folder / f"{name}.out").open("ab") as output:
            environment = {
                name: value for name, value in os.environ.items() if not name.startswith(("GRPO_", "SLURM_"))
            }
            self._processes[name] = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env={**environment, **self.environment},
                start_new_session=True,
            )  # fmt: skip


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@contextmanager
def running_cluster(folder: Path, **settings: int) -> Iterator[Slurm]:
    """A cluster that ends with the block. Preemption is at once, as grace times are looked at every 30 s."""
    slurm = Slurm(folder, **{"grace_s": 0, "kill_wait_s": 20, **settings})
    try:
        slurm.start()
        yield slurm
    finally:
        slurm.stop()


def wait_for_row(recorder: Recorder, run: str, fits: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first row of a run that fits, from the newest report on."""
    events = list(recorder.events)
    newest = max((n for n, event in enumerate(events) if isinstance(event, RunsReported)), default=0)

    def found(event: object) -> dict[str, Any] | None:
        rows = event.runs if isinstance(event, RunsReported) else []
        return next((row for row in rows if row["run"] == run and fits(row)), None)

    event = recorder.wait(lambda event: found(event) is not None, 30.0, newest)
    row = found(event)
    assert row is not None
    return row


def wait_for_end(recorder: Recorder, run: str) -> None:
    """Wait until a run has finished, as long as it makes progress."""
    row = wait_for_row(recorder, run, lambda row: True)

    def has_moved(before: int, row: dict[str, Any]) -> bool:
        return row["state"] == "finished" or row["step"] != before

    while row["state"] != "finished":
        row = wait_for_row(recorder, run, partial(has_moved, row["step"]))


def _wait(condition: Callable[[], object], what: str, timeout_s: float = 30.0) -> None:
    eventually(condition, timeout_s, f"SLURM: {what}", rest_s=0.1)  # each look is a process
