"""Evaluation requests: the arguments of ``grpo-train eval`` and the config they resolve to. Torch-free.

Settings, from lowest to highest priority: the run's config, the environment (MBPP only), the command line.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from grpo_train.config import schema, with_changes
from grpo_train.config.schema import Config
from grpo_train.run_dir.errors import UserError
from grpo_train.tasks import TaskError, load_task
from grpo_train.tasks.shared.hub_data import is_hub_path, pinned_path

MBPP_VARIABLES: dict[str, tuple[str, str, type]] = {
    "MBPP_EVAL_NUM_QUESTIONS": ("eval", "num_problems", int),
    "MBPP_DATASET_PATH": ("task", "path", str),
    "MBPP_EVAL_TEMPERATURE": ("eval", "temperature", float),
    "MBPP_EVAL_TIMEOUT_SECONDS": ("eval", "problem_seconds", float),
}
"""Environment variables for evaluations on MBPP: section, key, type."""


class EvalError(UserError):
    """An evaluation request that cannot be carried out."""

    code = "bad_evaluation"


@dataclass(frozen=True)
class EvalRequest:
    """The arguments of ``grpo-train eval``; None means the value in the run's config."""

    training_run: str | None
    """Name or path; may be None if ``ckpt_path`` is a step of a run, or with ``model``, where its settings are used."""
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
    model: str | None = None
    """A model to evaluate without a run (:mod:`grpo_train.evaluation.baselines`)."""
    cfg: Path | None = None
    """Config with the settings of a ``model``."""
    overrides: list[str] | None = None
    """``section.key=value`` of a ``model``'s settings."""


def resolve_config(config: Config, request: EvalRequest) -> Config:
    """The run's config with the environment and the request applied. Raises EvalError, ConfigError."""
    task: dict[str, Any] = {}
    parts = {part.part_label: part for part in config.task.parts}
    if request.dataset in parts:
        task = {**parts[request.dataset].model_dump(), "weight": 1.0, "parts": []}
    elif request.dataset and (parts or not _is_own_task(config, request.dataset)):
        # The run's path and grader belong to other data. Only the chat template is kept: the model needs it.
        trained = config.task.parts or [config.task]
        template = "chat" if any(part.template == "chat" for part in trained) else None
        task = {"name": request.dataset, "path": None, "template": template, "grader": "number", "splits": {}}
        task |= {"label": None, "parts": []}
    name = str(task.get("name", config.task.name))
    requested = {each.name: getattr(request, each.name) for each in fields(request)}
    changes = {key: requested[key] for key in schema.Eval.model_fields if requested.get(key) is not None}
    from_environment = environment_overrides(os.environ) if name == "mbpp" else {"task": {}, "eval": {}}
    task |= from_environment["task"]
    if request.dataset_path:
        path = request.dataset_path
        task["path"] = pinned_path(path) if is_hub_path(path) else path
    curriculum = schema.Curriculum().model_dump() if "name" in task else {}  # it names a task of the run
    return with_changes(config, task=task, eval=from_environment["eval"] | changes, curriculum=curriculum)


_SECTIONS: dict[str, type[schema.Section]] = {"task": schema.TaskConfig, "eval": schema.Eval}


def environment_overrides(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Changes to the ``task`` and ``eval`` sections from MBPP's variables. Raises EvalError for an invalid value."""
    found: dict[str, dict[str, Any]] = {"task": {}, "eval": {}}
    for variable, (section, key, kind) in MBPP_VARIABLES.items():
        text = environment.get(variable, "").strip()
        if not text:
            continue
        try:
            value = kind(text)
            _SECTIONS[section].model_validate({key: value})
        except ValueError as error:
            expected = {int: "a positive integer", float: "a number in its range", str: "a path"}[kind]
            raise EvalError(f"{variable}={text}: {section}.{key} must be {expected}") from error
        found[section][key] = value
    return found


def _is_own_task(config: Config, dataset: str) -> bool:
    """Whether a dataset name is the name or the label of the run's own task."""
    try:
        own = load_task(config.task)
    except TaskError:  # its data is not on this machine
        return False
    return dataset in (own.name, own.label)
