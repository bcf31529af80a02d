"""Stages of a run, each a separate process tree started by the supervisor. Torch-free."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass

from grpo_train.config.schema import Config
from grpo_train.config.sections.workflow import WorkflowStage
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE, run_id_of
from grpo_train.run_dir.signs import SIGNS_VARIABLE
from grpo_train.run_dir.slurm_job import REQUEUE_VARIABLE, current_job, node_count
from grpo_train.supervisor.nodes import Meeting
from grpo_train.supervisor.watchdog import signs_file

# a stage in a SLURM job: signals that SLURM sends to all of its processes, and several nodes ---------------

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
        with suppress(OSError, subprocess.TimeoutExpired):  # SLURM's controller does not answer
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


ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
"""Every torch reads the first name, newer ones also the second."""


@dataclass(frozen=True)
class Stage:
    """One stage: train to a step, evaluate, back up, or clean up."""

    kind: str
    """``train``, ``eval``, ``backup`` or ``cleanup``."""
    until: int
    """Step that training has reached after the stage."""
    dataset: str = ""
    """Task of an evaluation; "" = the trained task."""
    options: tuple[str, ...] = ()
    """Further options of its command."""

    @property
    def destination(self) -> str | None:
        """Of a backup or cleanup, in ``backup.yaml``; None = the default."""
        return self.options[self.options.index("--to") + 1] if "--to" in self.options else None

    @property
    def name(self) -> str:
        """The stage in words; two stages of one name do the same."""
        if self.kind == "train":
            return f"train to step {self.until}"
        steps = self.options[self.options.index("--steps") + 1] if "--steps" in self.options else ""
        words = [word.removeprefix("--") for word in self.options if word not in ("--steps", steps, "--yes")]
        settings = f" ({' '.join(words)})" if words else ""
        if self.kind == "eval":
            what = f"evaluate {'step' if (steps or '0').isdigit() else 'steps'} {steps or self.until}"
            what += f" at step {self.until}" if steps else ""
            return f"{what}{f' on {self.dataset}' if self.dataset else ''}{settings}"
        return f"{'back up' if self.kind == 'backup' else 'clean up'} at step {self.until}{settings}"

    def command(self, run: RunDir, nproc: int, ckpt: str | None, meeting: Meeting | None = None) -> list[str]:
        """Command line of the stage. ``meeting``: the other machines that take part, outside of SLURM."""
        python = [sys.executable, "-m"]
        if self.kind == "eval":
            steps = [] if "--steps" in self.options else ["--steps", str(self.until)]
            dataset = ["--eval-dataset", self.dataset] if self.dataset else []
            return [*python, "grpo_train.cli", "eval", "--training-run", str(run.path), *steps, *dataset, *self.options]
        if self.kind != "train":
            where = ["--training-run", run.name, "--root", str(run.root)]
            return [*python, "grpo_train.cli", self.kind, *where, *self.options]
        train = ["grpo_train.train", "--run-dir", str(run.path), *self.train_options(ckpt)]
        nodes = node_count()
        if meeting is not None:
            return torchrun_command(run, meeting.torchrun(0), meeting.processes, train)
        if nproc == nodes == 1:
            return [*python, *train]
        options = rendezvous() if nodes > 1 else ["--standalone"]
        return [*(on_each_node(nodes) if nodes > 1 else []), *torchrun_command(run, options, nproc // nodes, train)]

    def train_options(self, ckpt: str | None) -> list[str]:
        """Options of a training process, after the run directory."""
        return ["--until", str(self.until), *(["--ckpt", ckpt] if ckpt else [])]


def torchrun_command(run: RunDir, options: list[str], processes: int, train: list[str]) -> list[str]:
    """torchrun on one machine, with a failure report; ``train`` is a module and its arguments."""
    report = str(run.path / "control" / "error_torchrun.json")
    torchrun = [
        "-m",
        "grpo_train.train.torchrun",
        report,
        *options,
        f"--nproc_per_node={processes}",
        "--max-restarts=0",
    ]
    return [sys.executable, *torchrun, "-m", *train]


def all_stages(config: Config, total: int | None = None) -> list[Stage]:
    """Every stage of a run from its first step on; ``total`` in place of ``run.total_steps``."""
    total = config.run.total_steps if total is None else total
    if not config.workflow.stages:
        return _scheduled(config, total)
    stages: list[Stage] = []
    for entry in config.workflow.stages:
        at = max((stage.until for stage in stages if stage.kind == "train"), default=0)
        if entry.repeat is None:
            until = min((entry.train and entry.train.until) or total, total)
            stages += _expanded(entry, until if entry.train else at, config)
            continue
        last, every = min(entry.repeat.until or total, total), entry.repeat.every
        for step in [*range(at // every * every + every, last, every), *([last] if last > at else [])]:
            stages += [stage for inner in entry.repeat.stages for stage in _expanded(inner, step, config)]
    trained = max((stage.until for stage in stages if stage.kind == "train"), default=0)
    return stages if trained >= total else [*stages, Stage("train", total)]


def stages_left(start: int, config: Config) -> list[Stage]:
    """The stages that are left of a run of which nothing is known but that it has trained to step ``start``."""
    stages = all_stages(config)
    left = next((index for index, stage in enumerate(stages) if stage.kind == "train" and stage.until > start), None)
    return [] if left is None else stages if start == 0 else stages[left:]


def _scheduled(config: Config, total: int) -> list[Stage]:
    """The stages of ``run.eval_every``: training is split at its multiples; after each part, and at the end, each of
    ``eval.datasets`` is evaluated; with ``run.eval_initial`` also the starting model."""
    every, datasets = config.run.eval_every, config.eval_datasets

    def evaluation(step: int) -> list[Stage]:
        return [Stage("eval", step, dataset) for dataset in datasets]

    stages = evaluation(0) if config.run.eval_initial else []
    if not every:
        return [*stages, Stage("train", total)]
    for step in [*range(every, total, every), total]:
        stages += [Stage("train", step), *evaluation(step)]
    return stages


def _expanded(entry: WorkflowStage, step: int, config: Config) -> list[Stage]:
    """The stages of an entry other than ``repeat``, at a step."""
    if entry.eval is not None:
        settings = entry.eval
        options: list[str] = []
        if settings.steps != "latest":
            names = settings.steps if isinstance(settings.steps, str) else ",".join(map(str, settings.steps))
            options += ["--steps", names]
        for key in ("split", "num_problems", "subset_frac", "num_samples", "temperature"):
            if (value := getattr(settings, key)) is not None:
                options += [f"--{key.replace('_', '-')}", str(value)]
        datasets = settings.datasets or config.eval_datasets
        return [Stage("eval", step, dataset, tuple(options)) for dataset in datasets]
    if entry.backup is not None:
        return [Stage("backup", step, options=("--to", entry.backup.to) if entry.backup.to else ())]
    if entry.cleanup is not None:
        keep = ("--keep", str(entry.cleanup.keep)) if entry.cleanup.keep else ("--keep-latest",)
        to = ("--to", entry.cleanup.to) if entry.cleanup.to else ()
        return [Stage("cleanup", step, options=(*keep, *to, "--yes"))]
    return [Stage("train", step)]


def thread_count(nproc: int, nodes: int) -> int:
    """Threads of each of ``nproc`` processes on ``nodes`` machines: ``OMP_NUM_THREADS`` if set, else an equal share of
    this machine's cores."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdigit() and int(requested) > 0:
        return int(requested)
    return max(1, len(os.sched_getaffinity(0)) * nodes // nproc)


def stage_environment(run: RunDir, threads: int) -> dict[str, str]:
    """Environment of a stage: :func:`compute_environment`, run ID, unbuffered output."""
    return {
        **compute_environment(threads),
        RUN_ID_VARIABLE: run_id_of(run.path),
        PARENT_VARIABLE: str(os.getpid()),
        "LOCALFS_ROOT": str(run.root),
        SIGNS_VARIABLE: str(signs_file(run)),
        "PYTHONUNBUFFERED": "1",
    }


def compute_environment(threads: int) -> dict[str, str]:
    """Environment of a process that computes: fixed thread count, passive OpenMP waiting.

    GPU memory grows in place (``expandable_segments``, less fragmentation) unless the user configures the allocator.
    """
    given = any(name in os.environ for name in ALLOCATOR_VARIABLES)
    return {
        **({} if given else {ALLOCATOR_VARIABLES[0]: "expandable_segments:True"}),
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "TOKENIZERS_PARALLELISM": "false",
    }
