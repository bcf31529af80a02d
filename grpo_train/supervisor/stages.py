"""The stages of a run: each a process tree of its own, started by the supervisor. Torch-free."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from grpo_train.config.schema import Config
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.processes import PARENT_VARIABLE, RUN_ID_VARIABLE, run_id_of


@dataclass(frozen=True)
class Stage:
    """One process tree of a run."""

    kind: str
    """``train`` or ``eval``."""
    until: int
    """The step that the stage trains to, or evaluates."""
    dataset: str = ""
    """The task of an evaluation; "" = the one that is trained."""

    def command(self, run: RunDir, nproc: int, ckpt: str | None) -> list[str]:
        """What to start, as a list of words."""
        python = [sys.executable, "-m"]
        if self.kind == "eval":
            words = ["grpo_train.cli", "eval", "--training-run", str(run.path), "--steps", str(self.until)]
            return [*python, *words, *(["--eval-dataset", self.dataset] if self.dataset else [])]
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
    """The stages from step ``start`` on.

    Training is cut at every multiple of ``run.eval_every``; after each part, and at the end, every one of
    ``eval.datasets`` is evaluated; with ``run.eval_initial`` so is the model that the run starts from.
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
    """Threads of a training process: what the user set, else the cores shared out."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return int(asked) if asked.isdigit() and int(asked) > 0 else max(1, len(os.sched_getaffinity(0)) // nproc)


def stage_environment(run: RunDir, threads: int) -> dict[str, str]:
    """The environment of a stage: the run's id, a fixed thread count, passive OpenMP waiting, unbuffered output."""
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
