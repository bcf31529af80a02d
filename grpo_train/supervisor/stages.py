"""Stages of a run, each a separate process tree started by the supervisor. Torch-free."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE, run_id_of


@dataclass(frozen=True)
class Stage:
    """One stage: train to a step, or evaluate a step."""

    kind: str
    """``train`` or ``eval``."""
    until: int
    """Step that the stage trains to or evaluates."""
    dataset: str = ""
    """Task of an evaluation; "" = the trained task."""

    def command(self, run: RunDir, nproc: int, ckpt: str | None) -> list[str]:
        """Command line of the stage."""
        python = [sys.executable, "-m"]
        if self.kind == "eval":
            evaluate = ["grpo_train.cli", "eval", "--training-run", str(run.path), "--steps", str(self.until)]
            return [*python, *evaluate, *(["--eval-dataset", self.dataset] if self.dataset else [])]
        train = ["grpo_train.train", "--run-dir", str(run.path), "--until", str(self.until)]
        if ckpt:
            train += ["--ckpt", ckpt]
        if nproc == 1:
            return [*python, *train]
        report = str(run.path / "control" / "error_torchrun.json")
        torchrun = [
            "grpo_train.train.torchrun",
            report,
            "--standalone",
            f"--nproc_per_node={nproc}",
            "--max-restarts=0",
        ]
        return [*python, *torchrun, "-m", *train]


def plan(start: int, config: Config) -> list[Stage]:
    """Stages from step ``start`` to the end of the run.

    Training is split at every multiple of ``run.eval_every``. After each part and at the end, each of
    ``eval.datasets`` is evaluated; with ``run.eval_initial`` also the starting model.
    """
    total, every = config.run.total_steps, config.run.eval_every
    datasets = config.eval.datasets or [""]

    def evaluation(step: int) -> list[Stage]:
        return [Stage("eval", step, dataset) for dataset in datasets]

    stages = evaluation(0) if config.run.eval_initial and start == 0 else []
    if not every:
        return [*stages, Stage("train", total)] if start < total else []
    for step in range(start + 1, total + 1):
        if step % every == 0 or step == total:
            stages += [Stage("train", step), *evaluation(step)]
    return stages


def thread_count(nproc: int) -> int:
    """Threads of each training process: ``OMP_NUM_THREADS`` if set, else an equal share of the cores."""
    requested = os.environ.get("OMP_NUM_THREADS", "")
    if requested.isdigit() and int(requested) > 0:
        return int(requested)
    return max(1, len(os.sched_getaffinity(0)) // nproc)


def stage_environment(run: RunDir, threads: int) -> dict[str, str]:
    """Environment of a stage: run ID, fixed thread count, passive OpenMP waiting, unbuffered output."""
    return {
        **os.environ,
        RUN_ID_VARIABLE: run_id_of(run.path),
        PARENT_VARIABLE: str(os.getpid()),
        "LOCALFS_ROOT": str(run.root),
        "OMP_NUM_THREADS": str(threads),
        "OMP_WAIT_POLICY": "passive",
        "PYTHONUNBUFFERED": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
