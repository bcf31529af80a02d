"""Evaluation plans: which checkpoints are evaluated, on which problems, with which settings. Torch-free."""

from __future__ import annotations

import math
import os
import random
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from grpo_train.config import with_changes
from grpo_train.config.schema import Config
from grpo_train.evaluation.baselines import baseline_config, find_baseline, found_base
from grpo_train.evaluation.opponents import opponent_checkpoints, opponents_of
from grpo_train.evaluation.request import EvalError, EvalRequest, resolve_config
from grpo_train.evaluation.targets import (
    NO_MODEL,
    Target,
    Unfinished,
    find_run,
    holds_model,
    is_older,
    owning_run,
    pick_targets,
)
from grpo_train.platforms.choices import eval_problems
from grpo_train.platforms.facts import read_gpu_facts
from grpo_train.policy.locate import at_commit, base_of_checkpoint
from grpo_train.run_dir import RunDir, eval_folder, list_checkpoints
from grpo_train.run_dir.files import read_json
from grpo_train.tasks import Problem, Task, TaskDefaults, TaskError, load_task
from grpo_train.tasks.shared.self_play import SelfPlayTask


@dataclass(frozen=True)
class EvalPlan:
    """Input of the evaluating processes, as plain JSON."""

    run: str
    root: str
    folder: str
    label: str
    config: dict[str, Any]
    indices: list[int]
    targets: list[Target]
    base: str | None
    model: str = ""
    """The model of a baseline, see :mod:`grpo_train.evaluation.baselines`."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> EvalPlan:
        return cls(**{**document, "targets": [Target(**target) for target in document["targets"]]})

    @property
    def names(self) -> dict[str, str]:
        """What is evaluated on what, as status.json and eval_config.yaml have it."""
        names = {"training_run": self.run, "dataset": self.label}
        return {**names, "model": self.model} if self.model else names

    def result_folder(self, target: Target) -> Path:
        """``FOLDER/NAME_DATASET``, the directory of a target's results."""
        return Path(self.folder) / f"{target.name}_{self.label}"

    def is_backbone(self, target: Target) -> bool:
        """Whether a target is the backbone itself."""
        return target.path == self.root


def plan_evaluation(root: Path, request: EvalRequest) -> tuple[EvalPlan, list[Unfinished]]:
    """Resolve a request; also returns the requested checkpoints that cannot be evaluated.

    Raises EvalError, RunDirError, ConfigError, PolicyError.
    """
    if request.model is not None:
        return _plan_of_baseline(root, request), []
    name = request.training_run or str(owning_run(request.ckpt_path, root))
    run, checkpoints, config = find_run(root, name)
    config = resolve_config(config, request)
    _refuse_mixture(config)
    root = run.root  # a run given by its path keeps its evaluations in the same root
    task = _checked_task(config, root, request)
    targets, unusable = pick_targets(run, checkpoints, request)
    config = with_changes(config, model={"backbone": _backbone(config, run, checkpoints, targets, request)})
    return _plan(root, run.name, config, task, targets, request), unusable


def each_task(root: Path, request: EvalRequest) -> list[EvalRequest]:
    """A request for every task of a run's mixture; the request itself where it names one, or the run has one.

    Raises EvalError, RunDirError, ConfigError.
    """
    if request.dataset is not None:
        return [request]
    if request.model is None:
        config = find_run(root, request.training_run or str(owning_run(request.ckpt_path, root)))[2]
    elif request.training_run or request.cfg:
        config = baseline_config(root, request)
    else:
        return [request]
    if config.task.parts and request.dataset_path:
        _refuse_mixture(config)
    return [replace(request, dataset=part.part_label) for part in config.task.parts] or [request]


def _refuse_mixture(config: Config) -> None:
    if config.task.parts:
        labels = ", ".join(part.part_label for part in config.task.parts)
        raise EvalError(f"the run trains a mixture: name one of its tasks with --dataset ({labels})")


def _plan_of_baseline(root: Path, request: EvalRequest) -> EvalPlan:
    baseline = find_baseline(root, request)
    config = resolve_config(baseline_config(root, request), request)
    _refuse_mixture(config)
    config = with_changes(config, model={"backbone": baseline.backbone})
    if config.eval.num_problems == "auto":
        config = with_changes(config, eval={"num_problems": eval_problems(next(iter(read_gpu_facts()[0]), None))[0]})
    task = _checked_task(config, root, request)
    return replace(_plan(root, baseline.name, config, task, [baseline.target], request), model=baseline.model)


def _plan(root: Path, run: str, config: Config, task: Task, targets: list[Target], request: EvalRequest) -> EvalPlan:
    name = config.task.label or task.label
    label = name if config.eval.split == "test" else f"{name}_{config.eval.split}"
    return EvalPlan(
        run=run,
        root=str(root),
        folder=str(eval_folder(root, run, label)),
        label=label,
        config=config.model_dump(mode="json"),
        indices=_indices(task, task.size(config.eval.split), config),
        targets=targets,
        base=request.base,
    )


def _checked_task(config: Config, root: Path, request: EvalRequest) -> Task:
    """The task of an evaluation. Raises EvalError for missing data or settings that do not fit it."""
    try:
        task = task_of(config)
        if not task.size(config.eval.split):
            raise EvalError(f"task {config.task.label or task.label}: its {config.eval.split} split has no problems")
        if isinstance(task, SelfPlayTask):
            opponents_of(task, config)
            _check_opponents(config, root)
        elif request.opponents:
            raise EvalError(f"--opponent {request.opponents[0]}: task {task.name} is not a game")
    except TaskError as error:
        raise EvalError(str(error)) from error
    if config.eval.num_samples > 1 and not temperature_of(config, task):
        raise EvalError(
            f"eval.num_samples {config.eval.num_samples}: samples at temperature 0 are identical; "
            "set eval.temperature (--temperature 1)"
        )
    return task


def _backbone(config: Config, run: RunDir, checkpoints: Path, targets: list[Target], request: EvalRequest) -> str:
    """``model.backbone`` at the commit the checkpoints recorded.

    A run of the older layout has no config: its backbone is the base model named by its adapter. Raises PolicyError if
    that base model is missing.
    """
    backbone = config.model.backbone
    if not is_older(run.path):
        bases = (base_of_checkpoint(checkpoint.path, run.root) for checkpoint in list_checkpoints(checkpoints))
        return at_commit(backbone, next(filter(None, bases), None))
    for target in targets:
        for folder in (Path(target.path), Path(target.path) / "model"):
            base = (read_json(folder / "adapter_config.json") or {}).get("base_model_name_or_path")
            if base and not request.base:
                return found_base(str(base), folder, run.root)
    return backbone


def _check_opponents(config: Config, root: Path) -> None:
    """Raise EvalError for an opponent whose directory does not hold a model."""
    for path in opponent_checkpoints(config, root):
        if not holds_model(path):
            hint = "specify a checkpoint as training_runs/RUN/training_state/step_N"
            raise EvalError(f"eval.opponents: {path}: {NO_MODEL}; {hint}", code="no_checkpoint")


def temperature_of(config: Config, task: Task) -> float:
    """``eval.temperature``, or the task's default; 0 = greedy."""
    default = task.eval_temperature if isinstance(task, TaskDefaults) else 0.0
    return default if config.eval.temperature is None else config.eval.temperature


def task_of(config: Config) -> Task:
    """The task as evaluations judge it: programs may run for ``eval.problem_seconds``. Raises TaskError."""
    return load_task(config.task, config.sandbox.model_copy(update={"cpu_seconds": config.eval.problem_seconds}))


def problems_of(plan: EvalPlan, config: Config, task: Task) -> list[Problem]:
    """The problems of a plan, in order. Raises TaskError."""
    return [task.problem(config.eval.split, index) for index in plan.indices]


def evaluation_paths(plan: EvalPlan, targets: list[Target]) -> list[str]:
    """Every path that an evaluation of ``targets`` reads, relative to the root where inside it.

    Written to ``pending`` of the evaluation's status.json: while the evaluation is live, training removes none of them.
    """
    root = os.path.realpath(plan.root)
    paths = [os.path.realpath(target.path) for target in targets if not plan.is_backbone(target)]
    opponents = opponent_checkpoints(Config.model_validate(plan.config), Path(plan.root))
    paths += [os.path.realpath(opponent) for opponent in opponents]
    if plan.base:
        paths.append(os.path.realpath(os.path.join(root, os.path.expanduser(plan.base))))
    return [os.path.relpath(path, root) if path.startswith(root + os.sep) else path for path in paths]


def subset(size: int, fraction: float, seed: int, limit: int | None = None) -> list[int]:
    """A seeded share of range(size), sorted, of at least one and at most ``limit`` elements.

    Subsets are nested: a larger one contains every smaller one.
    """
    indices = list(range(size))
    random.Random(f"subset {seed}").shuffle(indices)
    return sorted(indices[: _share(size, fraction)][:limit])


def _indices(task: Task, size: int, config: Config) -> list[int]:
    """Problem indices. Games take the first ones: consecutive indices alternate roles and opponents."""
    if isinstance(task, SelfPlayTask):
        return list(range(size))[: _share(size, config.eval.subset_frac)][: config.eval_problems]
    return subset(size, config.eval.subset_frac, config.run.seed, config.eval_problems)


def _share(size: int, fraction: float) -> int:
    return max(1, math.ceil(round(size * fraction, 6)))
