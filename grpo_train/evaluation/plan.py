"""What is to be evaluated: which checkpoints, on which problems, under which settings. Torch-free."""

from __future__ import annotations

import math
import os
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from grpo_train.config import load_config, with_changes
from grpo_train.files import read_json
from grpo_train.run_dir import RunDir, RunDirError, eval_folder, list_checkpoints, open_run
from grpo_train.schema import Config
from grpo_train.tasks import TaskError, load_task

STEPS_SAY = "(say all, latest, final or numbers: 0,5,10; 0 is the model that the run started from)"


class EvalError(Exception):
    """An evaluation that cannot be done as asked; says what and the way out."""


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of ``grpo-train eval``; None = what the run's config says."""

    training_run: str
    steps: str = "all"
    dataset: str | None = None
    dataset_path: str | None = None
    subset_frac: float | None = None
    batch_size: int | None = None
    max_completion_length: int | None = None
    timeout: float | None = None
    ckpt_path: Path | None = None
    name: str | None = None
    base: str | None = None


@dataclass(frozen=True)
class Target:
    """One checkpoint to evaluate."""

    name: str
    """``step_10``, or the name given to ``--ckpt-path``."""
    step: int
    path: str
    """A checkpoint's directory; the root itself for the backbone (step 0 of a run without ``--ckpt``)."""


@dataclass(frozen=True)
class EvalPlan:
    """All that the evaluating child needs, as plain JSON."""

    run: str
    root: str
    folder: str
    label: str
    config: dict[str, Any]
    indices: list[int]
    targets: list[Target]
    base: str | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Skipped:
    """A checkpoint that was asked for and is not evaluated."""

    name: str
    step: int
    reason: str
    vanished: bool = False
    """It was there when it was asked for and has been removed since: nothing failed."""

    @property
    def status(self) -> str:
        """What the tables say."""
        return f"{'skipped' if self.vanished else 'failed'}: {self.reason}"


def find_run(root: Path, name: str) -> tuple[RunDir, Path, Config]:
    """The run, the folder of its checkpoints, its config. Runs of the older layout have no config: defaults.

    Raises RunDirError, ConfigError.
    """
    older = root / "rl_runs" / name
    if older.is_dir() and not (root / "training_runs" / name).exists():
        return RunDir(older), older, Config()
    run = open_run(root, name)
    if not run.config_file.exists():
        raise RunDirError(f"{run.name} has no config.yaml: it never started")
    return (
        run,
        run.training_state,
        load_config(run.config_file.read_text(encoding="utf-8"), source=str(run.config_file)),
    )


def pick_targets(run: RunDir, folder: Path, request: EvalRequest) -> tuple[list[Target], list[Skipped]]:
    """The checkpoints that ``--steps`` or ``--ckpt-path`` name, each once. Raises EvalError, RunDirError."""
    if request.ckpt_path:
        path = request.ckpt_path.expanduser().absolute()
        if not any(
            (path / inner / name).is_file()
            for inner in ("", "model")
            for name in ("config.json", "adapter_config.json")
        ):
            raise EvalError(f"--ckpt-path {request.ckpt_path}: no model there (config.json or adapter_config.json)")
        name = request.name or path.name
        if path.is_symlink():  # step_latest moves while training goes on
            path = path.parent / os.readlink(path)
        match = re.fullmatch(r"step_(\d+)", path.name)
        info = read_json(path / "training_info.json") or {}
        step = int(info["step"]) if "step" in info else int(match[1]) if match else 0
        return [Target(name, step, str(path))], []
    if request.steps == "all":
        older = folder.parent.name == "rl_runs"
        found = list_checkpoints(folder)
        good = [c for c in found if not c.problem or older]
        targets = [Target(f"step_{c.step}", c.step, str(c.path)) for c in good]
        skipped = [Skipped(f"step_{c.step}", c.step, c.problem) for c in found if c.problem and not older]
        if not targets and not skipped:
            raise EvalError(f"{run.name} has no checkpoint to evaluate yet")
        return targets, skipped
    targets, skipped = [], []
    words = [part.strip() for part in request.steps.split(",") if part.strip()]
    if not words:
        raise EvalError(f"--steps names no step {STEPS_SAY}")
    for word in words:
        if word not in ("latest", "final") and not word.isdigit():
            raise EvalError(f"--steps {request.steps}: '{word}' is no step {STEPS_SAY}")
        if word == "0":
            targets.append(Target("step_0", 0, str(run.root / (run.read_launch().get("ckpt") or ""))))
            continue
        try:
            owner = RunDir(folder.parent if folder.name == "training_state" else folder)
            checkpoint = owner.checkpoint(word, way_out="evaluate with --steps {step}")
        except RunDirError as error:
            skipped.append(Skipped(f"step_{word}", int(word) if word.isdigit() else 0, str(error)))
            continue
        target = Target(f"step_{checkpoint.step}", checkpoint.step, str(checkpoint.path))
        if target not in targets:
            targets.append(target)
    if not targets and len(skipped) == 1:
        raise EvalError(skipped[0].reason)
    return targets, skipped


def make_plan(root: Path, request: EvalRequest) -> tuple[EvalPlan, list[Skipped]]:
    """Resolve a request. Raises EvalError, RunDirError, ConfigError."""
    run, folder, config = find_run(root, request.training_run)
    task_changes: dict[str, Any] = {}
    if request.dataset and not _same_task(config, request.dataset):
        task_changes = {"name": request.dataset, "path": None}  # the run's own path holds other data
    if request.dataset_path:
        task_changes["path"] = request.dataset_path
    eval_changes = {
        key: value
        for key, value in {
            "subset_frac": request.subset_frac,
            "batch_size": request.batch_size,
            "timeout": request.timeout,
            "max_completion_length": request.max_completion_length,
        }.items()
        if value is not None
    }
    config = with_changes(config, task=task_changes, eval=eval_changes)
    root = run.root  # a run given by its path keeps its evaluations beside it
    try:
        task = load_task(config.task)
        size = task.size("test")
    except TaskError as error:
        raise EvalError(str(error)) from error
    targets, skipped = pick_targets(run, folder, request)
    plan = EvalPlan(
        run=run.name,
        root=str(root),
        folder=str(eval_folder(root, run.name, task.label)),
        label=task.label,
        config=config.model_dump(mode="json"),
        indices=subset(size, config.eval.subset_frac, config.run.seed),
        targets=targets,
        base=request.base,
    )
    return plan, skipped


def announced(plan: EvalPlan, targets: list[Target]) -> list[str]:
    """Every place that an evaluation of ``targets`` reads, relative to the root where it lies in it.

    This is ``pending`` of the evaluation's status.json: while it is live, no training removes any of it.
    """
    root = os.path.realpath(plan.root)
    places = [os.path.realpath(target.path) for target in targets if target.path != plan.root]
    if plan.base:
        places.append(os.path.realpath(os.path.join(root, os.path.expanduser(plan.base))))
    return [os.path.relpath(place, root) if place.startswith(root + os.sep) else place for place in places]


def subset(size: int, fraction: float, seed: int) -> list[int]:
    """A seeded share of range(size), at least one, in order; a larger share contains every smaller one."""
    indices = list(range(size))
    random.Random(f"subset {seed}").shuffle(indices)
    return sorted(indices[: max(1, math.ceil(round(size * fraction, 6)))])


def wilson_interval(correct: int, total: int, z: float = 1.959964) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson 1927), 95 % by default."""
    if total == 0:
        return 0.0, 1.0
    p = correct / total
    centre = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)


def _same_task(config: Config, dataset: str) -> bool:
    """Whether a dataset's name is another name of the run's own task."""
    try:
        own = load_task(config.task)
    except TaskError:
        return False
    return dataset in (own.name, own.label)
