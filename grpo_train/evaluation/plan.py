"""What is to be evaluated: which checkpoints, on which problems, under which settings. Torch-free.

Settings come, from the weakest to the strongest, from the run's config, the environment (mbpp's four variables) and the
command line.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from grpo_train.config import load_config, schema, with_changes
from grpo_train.config.schema import Config
from grpo_train.evaluation.opponents import checkpoints_of, opponents_of
from grpo_train.policy.locate import at_commit, base_of_checkpoint
from grpo_train.run_dir import RunDir, RunDirError, eval_folder, list_checkpoints, open_run
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json
from grpo_train.tasks import Problem, Task, TaskError, load_task
from grpo_train.tasks.shared.self_play import SelfPlayTask

MBPP_VARIABLES: dict[str, tuple[str, str, type]] = {
    "MBPP_EVAL_NUM_QUESTIONS": ("eval", "num_problems", int),
    "MBPP_DATASET_PATH": ("task", "path", str),
    "MBPP_EVAL_TEMPERATURE": ("eval", "temperature", float),
    "MBPP_EVAL_TIMEOUT_SECONDS": ("eval", "problem_seconds", float),
}
"""Variables of the environment that change the evaluation of mbpp: section, key, kind."""
STEPS_SAY = "(say all, latest, final or numbers: 0,5,10; 0 is the model that the run started from)"


class EvalError(UserError):
    """An evaluation that cannot be done as asked; says what and the way out."""

    code = "bad_evaluation"


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of ``grpo-train eval``; None = what the run's config says."""

    training_run: str
    steps: str = "all"
    dataset: str | None = None
    dataset_path: str | None = None
    split: str | None = None
    subset_frac: float | None = None
    num_problems: int | None = None
    batch_size: int | str | None = None
    max_completion_length: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    num_samples: int | None = None
    opponents: list[str] | None = None
    nproc: int | None = None
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
    key: dict[str, Any] = field(default_factory=dict, compare=False)
    """What its samples depend on, see :mod:`grpo_train.evaluation.results.keys`; set when its evaluation begins."""


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

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> EvalPlan:
        return cls(**{**document, "targets": [Target(**target) for target in document["targets"]]})

    def final(self, target: Target) -> Path:
        """Where a target's results go: ``FOLDER/NAME_DATASET``."""
        return Path(self.folder) / f"{target.name}_{self.label}"


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
        if not _holds_model(path):
            raise EvalError(f"--ckpt-path {request.ckpt_path}: no model there (config.json or adapter_config.json)")
        name = _name_of(path, request.name, folder)
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
        if word not in ("latest", "final"):
            if not (word.isascii() and word.isdigit()):
                raise EvalError(f"--steps {request.steps}: '{word}' is no step {STEPS_SAY}")
            word = str(int(word))
        if word == "0":
            target = Target("step_0", 0, str(run.root / (run.read_launch().get("ckpt") or "")))
            targets += [target] if target not in targets else []
            continue
        try:
            owner = RunDir(folder.parent if folder.name == "training_state" else folder)
            checkpoint = owner.checkpoint(word, hint="evaluate with --steps {step}")
        except RunDirError as error:
            skipped.append(Skipped(f"step_{word}", int(word) if word.isdigit() else 0, str(error)))
            continue
        target = Target(f"step_{checkpoint.step}", checkpoint.step, str(checkpoint.path))
        if target not in targets:
            targets.append(target)
    if not targets and len(skipped) == 1:
        raise EvalError(skipped[0].reason)
    return targets, skipped


def _name_of(path: Path, name: str | None, folder: Path) -> str:
    """What the results of ``--ckpt-path`` are called. ``folder``: of the run's own steps. Raises EvalError."""
    option, name = ("--name", name) if name is not None else ("--ckpt-path", path.name)
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > 128:
        raise EvalError(
            f"{option} {name}: cannot name results: give a --name without '/', that does not begin with '.', of 128 "
            "bytes at most"
        )
    if re.fullmatch(r"step_\d+", name) and os.path.realpath(path) != os.path.realpath(folder / name):
        raise EvalError(f"{option} {name}: so the results of the run's own steps are called: give another --name")
    return name


def _holds_model(path: Path) -> bool:
    """Whether a directory looks like a model, an adapter, or a checkpoint of one."""
    names = ("config.json", "adapter_config.json")
    return any((path / inner / name).is_file() for inner in ("", "model") for name in names)


def _check_opponents(config: Config, root: Path) -> None:
    """Raise EvalError for an opponent whose directory holds no model."""
    for place in checkpoints_of(config, root):
        if not _holds_model(place):
            steps = "name a checkpoint as training_runs/RUN/training_state/step_N"
            raise EvalError(f"eval.opponents: {place}: no model there (config.json or adapter_config.json); {steps}")


def make_plan(root: Path, request: EvalRequest) -> tuple[EvalPlan, list[Skipped]]:
    """Resolve a request. Raises EvalError, RunDirError, ConfigError."""
    run, folder, config = find_run(root, request.training_run)
    config = with_request(config, request)
    root = run.root  # a run given by its path keeps its evaluations beside it
    try:
        task = task_of(config)
        size = task.size(config.eval.split)
        if isinstance(task, SelfPlayTask):
            opponents_of(task, config)
            _check_opponents(config, root)
        elif request.opponents:
            raise EvalError(f"--opponent {request.opponents[0]}: task {task.name} is no game")
    except TaskError as error:
        raise EvalError(str(error)) from error
    if config.eval.num_samples > 1 and not temperature_of(config, task):
        raise EvalError(
            f"eval.num_samples {config.eval.num_samples}: at temperature 0 they would all be the same; "
            "set eval.temperature (--temperature 1)"
        )
    targets, skipped = pick_targets(run, folder, request)
    recorded = next((base for c in list_checkpoints(folder) if (base := base_of_checkpoint(c.path, root))), None)
    config = with_changes(config, model={"backbone": at_commit(config.model.backbone, recorded)})
    label = task.label if config.eval.split == "test" else f"{task.label}_{config.eval.split}"
    plan = EvalPlan(
        run=run.name,
        root=str(root),
        folder=str(eval_folder(root, run.name, label)),
        label=label,
        config=config.model_dump(mode="json"),
        indices=_indices(task, size, config),
        targets=targets,
        base=request.base,
    )
    return plan, skipped


def with_request(config: Config, request: EvalRequest) -> Config:
    """The run's config under the environment and the command line. Raises EvalError, ConfigError."""
    task: dict[str, Any] = {}
    if request.dataset and not _same_task(config, request.dataset):
        # The run's own path, template and grader are about other data.
        chats = config.task.template == "chat"  # what the model wants, whatever it is asked
        template = "chat" if chats else None
        task = {"name": request.dataset, "path": None, "template": template, "grader": "number"}
    name = str(task.get("name", config.task.name))
    asked = {each.name: getattr(request, each.name) for each in fields(request)}
    changes = {key: asked[key] for key in schema.Eval.model_fields if asked.get(key) is not None}
    from_environment = environment_overrides(os.environ) if name == "mbpp" else {"task": {}, "eval": {}}
    task |= from_environment["task"]
    if request.dataset_path:
        task["path"] = request.dataset_path
    return with_changes(config, task=task, eval=from_environment["eval"] | changes)


def environment_overrides(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """What mbpp's variables say about the ``task`` and ``eval`` sections. Raises EvalError for a value that is none."""
    found: dict[str, dict[str, Any]] = {"task": {}, "eval": {}}
    for variable, (section, key, kind) in MBPP_VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        try:
            value = kind(text)
            getattr(schema, section.capitalize()).model_validate({key: value})
        except ValueError as error:
            what = {int: "a whole number above 0", float: "a number", str: "a path"}[kind]
            raise EvalError(f"{variable}={text}: {section}.{key} wants {what} in its range") from error
        found[section][key] = value
    return found


def temperature_of(config: Config, task: Task) -> float:
    """``eval.temperature``, else the task's own; 0 = greedy."""
    own = float(getattr(task, "eval_temperature", 0.0))
    return own if config.eval.temperature is None else config.eval.temperature


def task_of(config: Config) -> Task:
    """The task as an evaluation judges it: programs have ``eval.problem_seconds``. Raises TaskError."""
    return load_task(config.task, config.sandbox.model_copy(update={"cpu_seconds": config.eval.problem_seconds}))


def problems_of(plan: EvalPlan, config: Config, task: Task) -> list[Problem]:
    """The problems that are asked, in order. Raises TaskError."""
    return [task.problem(config.eval.split, index) for index in plan.indices]


def announced(plan: EvalPlan, targets: list[Target]) -> list[str]:
    """Every place that an evaluation of ``targets`` reads, relative to the root where it lies in it.

    This is ``pending`` of the evaluation's status.json: while it is live, no training removes any of it.
    """
    root = os.path.realpath(plan.root)
    places = [os.path.realpath(target.path) for target in targets if target.path != plan.root]
    opponents = checkpoints_of(Config.model_validate(plan.config), Path(plan.root))
    places += [os.path.realpath(opponent) for opponent in opponents]
    if plan.base:
        places.append(os.path.realpath(os.path.join(root, os.path.expanduser(plan.base))))
    return [os.path.relpath(place, root) if place.startswith(root + os.sep) else place for place in places]


def subset(size: int, fraction: float, seed: int, most: int | None = None) -> list[int]:
    """A seeded share of range(size), at least one and at ``most`` so many, in order; more contains less."""
    indices = list(range(size))
    random.Random(f"subset {seed}").shuffle(indices)
    return sorted(indices[: _share(size, fraction)][:most])


def _indices(task: Task, size: int, config: Config) -> list[int]:
    """The problems to ask. Matches are the first ones: their numbers go through roles and opponents in turn."""
    if isinstance(task, SelfPlayTask):
        return list(range(size))[: _share(size, config.eval.subset_frac)][: config.eval.num_problems]
    return subset(size, config.eval.subset_frac, config.run.seed, config.eval.num_problems)


def _share(size: int, fraction: float) -> int:
    return max(1, math.ceil(round(size * fraction, 6)))


def _same_task(config: Config, dataset: str) -> bool:
    """Whether a dataset's name is another name of the run's own task."""
    try:
        own = load_task(config.task)
    except TaskError:
        return False
    return dataset in (own.name, own.label)
