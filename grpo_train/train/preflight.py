"""Creating a run from a config, after checks of engine, device, model, weights and data. Torch-free."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from grpo_train.config import load_config, read_config_text, schema, with_changes
from grpo_train.config.schema import Config
from grpo_train.platforms.choices import resolve_auto
from grpo_train.platforms.facts import read_machine
from grpo_train.platforms.hub_models import check_hub_model, check_lengths
from grpo_train.policy.device import check_device
from grpo_train.policy.locate import (
    BACKBONES,
    PolicyError,
    adapter_of,
    check_base,
    check_files,
    check_weights,
    recorded_base,
    resolve_backbone,
)
from grpo_train.rewards import Rewards, load_rewards
from grpo_train.rewards.signatures import TRL_PREFIX, split_prefix
from grpo_train.rewards.user_code import absolute_name, blame
from grpo_train.rollout.vllm.server import check_servers
from grpo_train.run_dir import RunDir, create_run
from grpo_train.run_dir.errors import UserError, no_engine
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.root import SWEEP_VARIABLE, Launch
from grpo_train.run_dir.slurm_job import node_count
from grpo_train.tasks import Attempt, Mixture, Problem, Task, TaskDefaults, TaskError, load_task, refuse_unused
from grpo_train.tasks.shared.data_files import locate
from grpo_train.tasks.shared.hub_data import is_hub_path, pinned_path
from grpo_train.tasks.shared.self_play import SelfPlayTask, check_self_play
from grpo_train.tracking.wandb.settings import check as check_wandb
from grpo_train.tracking.wandb.settings import has_key
from grpo_train.train import pass_rates
from grpo_train.train.curriculum import LevelControl

# a call of every user-defined task, grader and reward function, on dummy completions of a real problem ------
# A function that fails does so before the model is loaded and the first completions are generated.

COUNT = 2
"""Number of completions: a single one would not show a list of the wrong length."""
IDS = tuple(range(1, 17))
"""Token ids of a completion."""


def try_judging(rewards: Rewards, task: Task, config: schema.TaskConfig) -> None:
    """Judge and reward completions of the first training problem of each task where code of the user's does it, and end
    the process of their reward functions.

    Raises TaskError for a function that fails, and for a task whose first problem cannot be read.
    """
    sections = [(part.part_label, part) for part in config.parts] if config.parts else [("", config)]
    parts = task.parts if isinstance(task, Mixture) else {"": task}
    with closing(rewards):
        for label, section in sections:
            if not (rewards.has_user_functions or ":" in section.name or ":" in section.grader):
                continue
            try:
                problem = parts[label].problem("train", 0)
                _try(rewards, parts[label], replace(problem, task=label) if label else problem)
            except UserError:
                raise
            except Exception as error:  # user code may raise anything
                if not (found := blame(error)):
                    raise
                raise TaskError(found) from error


def _try(rewards: Rewards, task: Task, problem: Problem) -> None:
    text = f"It is so.</think> <answer>{problem.answer or 1}</answer>"
    attempts = [Attempt(problem, text, length=len(IDS), key=f"0/0/{slot}", ids=IDS) for slot in range(COUNT)]
    verdict = task.judge(attempts[0])
    if message := verdict.facts.get("grader_error"):
        raise TaskError(f"task.grader: it fails on the gold answer of the first problem: {message}")
    if isinstance(task, SelfPlayTask):  # its scores come from whole games
        verdict = replace(verdict, score=0.0)
    started = [rewards.start(attempt, verdict) for attempt in attempts]
    rewards.complete(started, attempts, [verdict] * COUNT, COUNT)


SHAPE = {
    "lora_rank": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_targets": "target_modules",
}
"""Keys of ``model`` that an adapter is created with, by their names in ``adapter_config.json``."""


def check_engine() -> None:
    """Raise UserError if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise no_engine("torch")


class PlannedJob(NamedTuple):
    """What a SLURM job that is not submitted yet will have."""

    nodes: int
    gpus: int = 0
    """GPUs of each node; 0 = not known."""


def check_nodes(config: Config, planned: PlannedJob | None = None) -> None:
    """Raise PolicyError if processes cannot be spread evenly over the machines, or over the GPUs of a planned job."""
    nproc, nodes, job = config.run.nproc, config.run.nodes, planned.nodes if planned else node_count()
    if job > 1 and nodes not in (1, job):
        raise PolicyError(f"run.nodes is {nodes}, but the job has {job} nodes; leave run.nodes out", code="bad_config")
    if nproc % max(nodes, job):
        machines = f"but the job has {job} nodes" if job > 1 else f"but run.nodes is {nodes}"
        raise PolicyError(
            f"run.nproc is {nproc}, {machines}: it must be a multiple of {max(nodes, job)} (processes in all)",
            code="bad_config",
        )
    gpus = planned.gpus * max(nodes, job) if planned and config.model.device != "cpu" else 0
    if gpus and nproc > gpus:
        raise PolicyError(
            f"run.nproc is {nproc}, but the job has {gpus} GPU(s); each process needs its own: set run.nproc to {gpus}",
            code="no_gpu",
        )


def _say(line: str) -> None:
    print(line, flush=True)


def make_run(
    cfg: Path,
    overrides: list[str],
    ckpt: Path | None,
    root: Path,
    name: str | None,
    nproc: int | None = None,
    say: Callable[[str], None] = _say,
) -> tuple[RunDir, Config]:
    """Create a run from a config file, as a shell command does; returns it and its checked config. Raises UserError."""
    text = read_config_text(cfg)
    config = check_start(load_config(text, overrides, source=str(cfg)), root, ckpt, say)
    weights = recorded_base(str(ckpt), root) if ckpt else None
    sweep = os.environ.get(SWEEP_VARIABLE) or None
    launch = Launch(sys.argv, str(cfg), text, overrides, ckpt=weights, nproc=nproc, sweep=sweep)
    return create_run(root, asdict(launch), name), config


def check_start(
    config: Config,
    root: Path,
    ckpt: Path | None,
    say: Callable[[str], None] = _say,
    *,
    is_planned: bool = False,
    job: PlannedJob | None = None,
) -> Config:
    """Check everything a run needs before it is created; returns its config.

    In the returned config, keys that were ``auto`` have the values chosen for this machine, which ``say`` gets with
    their reasons; paths of the ``task`` section are absolute (a resume may run elsewhere), a dataset of the hub is
    pinned to its commit, and the ``lora_*`` keys are those of a continued adapter.

    ``is_planned``: the start comes later, and makes the demo's model first. ``job``: the run will be this job, so the
    GPUs of this machine do not count and ``auto`` stays; its nodes have no network, so all data must be here.

    Raises PolicyError, TaskError.
    """
    check_engine()
    check_wandb(config.tracking.wandb)
    check_nodes(config, job)
    if job is None:
        check_device(config.model.device, config.run.nproc // node_count(config.run.nodes))
        if config.rollout.backend == "vllm":
            check_servers(config.rollout)
        config, choices = resolve_auto(config, read_machine(), root)
        for choice in choices:
            say(f"{choice.key}: auto -> {choice.value} ({choice.reason})")
    if (url := config.notify.url) and not os.environ.get(url.strip("${}")):
        say(f"notify.url: {url} is not set on this machine, so nothing is posted; set it in .env (grpo-tui env put)")
    if config.tracking.wandb == "online" and not has_key():
        say("tracking.wandb: no API key, so nothing is sent; run 'wandb login', or set WANDB_API_KEY in .env")
    config = with_changes(config, task=_each_part(config.task, partial(_absolute, root=root)))
    config = with_changes(config, task=_each_part(config.task, lambda part: pass_rates.resolved(part, config, root)))
    config = with_changes(
        config,
        algorithm={"loss_type": absolute_name(config.algorithm.loss_type)},
        rollout={"backend": absolute_name(config.rollout.backend)},
    )
    task = load_task(config.task, config.sandbox)
    weights = check_weights(ckpt, config.model.adapter) if ckpt else None
    if weights is not None:
        check_files(weights)
    backbone = ""  # of full weights: they need none
    if is_planned and weights is None and needs_demo_model(config, root):
        say(f"model.backbone: the tiny model of the demo is made first, in {root / BACKBONES['tiny']} (about a minute)")
    elif (weights is None or adapter_of(weights) == "lora") and config.model.backbone != "auto":
        backbone = resolve_backbone(config.model.backbone, root)
        check_files(Path(backbone))
        if weights is not None:
            check_base(weights, backbone, root)
            config = with_changes(config, model=_shape_of(weights))
    parts = list(task.parts.values()) if isinstance(task, Mixture) else [task]
    if any(isinstance(part, TaskDefaults) and part.hub_path for part in parts):
        config = with_changes(config, task=_each_part(config.task, _pinned))
        task = load_task(config.task, config.sandbox)
    refuse_unused(config.task, config.eval.datasets)
    rewards = load_rewards(task, config)
    if config.curriculum.threshold is not None:
        LevelControl(config).mixture()
    if isinstance(task, SelfPlayTask):
        check_self_play(task, config)
    has_path = any(part.path is not None for part in config.task.parts or [config.task])
    if (job is not None or has_path) and not task.size("train"):
        raise TaskError(f"task {task.name}: its train split has no problems")
    if job is None:  # else they may need the node's GPUs
        try_judging(rewards, task, config.task)
    _try_own("grpo_train.train.own_loss", config.algorithm.loss_type)
    _try_own("grpo_train.rollout.own", config.rollout.backend)
    if backbone:
        check_hub_model(backbone)  # last: it may wait for the network
    if backbone or weights is not None:
        check_lengths(backbone or str(weights), config.rollout)
    return config


def _try_own(module: str, name: str) -> None:
    """Try a user's loss or backend in a process of its own, as its file may import torch. Raises TaskError."""
    if ":" not in name:
        return
    command = [sys.executable, "-W", "ignore", "-m", module, name]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise TaskError(done.stderr.strip() or f"{name} ended its process with exit {done.returncode}")


def needs_demo_model(config: Config, root: Path) -> bool:
    """Whether a start makes the tiny model of the demo first: it is warm-started on addition, so other tasks get the
    message that names the command."""
    is_demo = config.model.backbone == "tiny" and config.task.name == "addition"
    return is_demo and not os.path.lexists(root / BACKBONES["tiny"] / "config.json")


def make_demo_model(config: Config, root: Path) -> None:
    """Make the tiny model of the demo where a start needs it: about a minute, in a separate process. Raises
    PolicyError."""
    if not needs_demo_model(config, root):
        return
    check_engine()
    place = root / BACKBONES["tiny"]
    print(f"grpo-train: making the tiny model of the demo in {place} (about a minute, once)", flush=True)
    command = [sys.executable, "-m", "grpo_train.cli", "tiny-model", "--out", str(place)]
    place.parent.mkdir(parents=True, exist_ok=True)
    if status := subprocess.run(command, stdin=subprocess.DEVNULL).returncode:
        raise PolicyError(f"the tiny model could not be made (exit status {status}); see above, or run it: {command}")


def _each_part(task: schema.TaskConfig, changes: Callable[[schema.TaskConfig], dict[str, Any]]) -> dict[str, Any]:
    """The changes of a task, or of every part of a mixture."""
    if not task.parts:
        return changes(task)
    return {"parts": [part.model_dump() | changes(part) for part in task.parts]}


def _pinned(section: schema.TaskConfig) -> dict[str, Any]:
    """A dataset of the hub at its commit: later ones must not change what a resume reads."""
    task = load_task(section)
    return {"path": pinned_path(task.hub_path)} if isinstance(task, TaskDefaults) and task.hub_path else {}


def _absolute(task: schema.TaskConfig, root: Path) -> dict[str, Any]:
    """The ``task`` keys that hold paths, made absolute, and a dataset of the hub at its commit; built-in names and
    installed modules stay unchanged."""

    def function(name: str) -> str:
        plain, is_trl = split_prefix(name)
        return f"{TRL_PREFIX if is_trl else ''}{absolute_name(plain)}" if ":" in plain else name

    return {
        "path": None if task.path is None else _data_path(task.path, root),
        "name": function(task.name),
        "grader": function(task.grader),
        "rewards": [function(name) for name in task.rewards],
    }


def _data_path(path: str, root: Path) -> str:
    return pinned_path(path) if is_hub_path(path) else str(locate(path, root))


def kept_shape(before: Config, config: Config) -> dict[str, Any]:
    """The ``lora_*`` keys of a run that resumes from a checkpoint, as its config has them. Raises UserError where one
    was changed: the saved adapter keeps its shape."""
    if before.model.adapter != "lora":
        return {}
    own = {key: getattr(before.model, key) for key in SHAPE}
    for key, value in own.items():
        if (new := getattr(config.model, key)) != value:
            raise UserError(
                f"model.{key} cannot become {new} when a run resumes: its adapter was saved with {value}; leave it "
                "out, or start a new run"
            )
    return own


def _shape_of(adapter: Path) -> dict[str, Any]:
    """The ``lora_*`` keys that an adapter was created with; they override the config's."""
    adapter_config = read_json(adapter / "adapter_config.json") or {}
    found = {key: adapter_config[name] for key, name in SHAPE.items() if adapter_config.get(name) is not None}
    if isinstance(found.get("lora_targets"), list):
        found["lora_targets"] = sorted(found["lora_targets"])
    return found
