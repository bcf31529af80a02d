"""Baselines: models that are evaluated without a run, beside runs in ``eval_runs`` under names that no run can have.

The results of a baseline are in ``eval_runs/@NAME_DATASET/model_DATASET``. Torch-free.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from grpo_train.config.loading import load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.evaluation.request import EvalError, EvalRequest
from grpo_train.evaluation.targets import NO_MODEL, Target, find_run, holds_model
from grpo_train.platforms.hub_models import check_hub_model
from grpo_train.policy.locate import (
    BACKBONES,
    PolicyError,
    adapter_of,
    base_of_checkpoint,
    hub_commit,
    hub_id,
    model_folder,
    recorded_base,
    resolve_backbone,
)
from grpo_train.run_dir import RunDir, list_baselines, list_evaluations
from grpo_train.run_dir.evaluations import MARK
from grpo_train.run_dir.files import read_json

TARGET = "model"
"""Name of a baseline's results, where a run has ``step_N``."""


@dataclass(frozen=True)
class Baseline:
    """A model to evaluate without a run."""

    name: str
    """``@OWNER--NAME`` or ``@DIRECTORY``."""
    model: str
    """``OWNER/NAME@COMMIT``, or a directory, relative to the root where it is inside."""
    backbone: str
    """The model itself; of an adapter its base."""
    target: Target


def find_baseline(root: Path, request: EvalRequest) -> Baseline:
    """The model of ``--model``: a hub ID, optionally at a commit, a short name, or a directory of a model or adapter.

    Raises EvalError for what is neither or a name that is taken, PolicyError for a base that is missing.
    """
    given = str(request.model)
    folder = _folder(given, root)
    if folder is None:
        name, commit = _pinned(given, root)
        pinned = f"{name}@{commit}"
        # The root as the target's path means the backbone itself.
        target = Target(TARGET, 0, str(root))
        found = Baseline(_name(request, name.replace("/", "--")), pinned, pinned, target)
    else:
        inner = model_folder(folder)
        is_adapter = adapter_of(inner) == "lora"
        backbone = request.base or _base_of_adapter(folder, root) if is_adapter else str(inner)
        target = Target(TARGET, 0, str(folder))
        found = Baseline(_name(request, folder.name), recorded_base(str(folder), root), backbone, target)
    for evaluation in list_evaluations(root, found.name):
        other = str(evaluation["status"].get("model") or "")
        if hub_id(other)[0] != hub_id(found.model)[0]:
            raise EvalError(f"the name {found.name} belongs to the results of {other}; choose another with --name")
    return found


def baseline_config(root: Path, request: EvalRequest) -> Config:
    """The settings of a baseline's evaluation: those of ``--training-run``, of ``--cfg``, or the defaults.

    Raises EvalError, RunDirError, ConfigError.
    """
    overrides = list(request.overrides or [])
    if request.training_run:
        run, _, config = find_run(root, request.training_run)
        if not overrides:
            return config
        return load_config(read_config_text(run.config_file), overrides, source=str(run.config_file))
    if request.cfg:
        return load_config(read_config_text(request.cfg), overrides, source=str(request.cfg))
    if not request.dataset:
        raise EvalError("--model needs --dataset, or a run or config with a task (--training-run or --cfg)")
    return load_config("", [f"task.name={request.dataset}", *overrides], source="--set")


def is_baseline(name: str) -> bool:
    """Whether this is the name of a baseline, not of a run."""
    return name.startswith(MARK)


def find_evaluated(root: Path, name: str) -> RunDir:
    """A run, or a baseline by its name or model, which has only a name and a root; its directory does not exist.

    Raises EvalError, RunDirError, ConfigError.
    """
    for baseline in list_baselines(root):
        model = str(baseline["model"])
        if BACKBONES.get(name, name) in (baseline["run"], model, hub_id(model)[0]) or _same_folder(name, model, root):
            return RunDir(root / "training_runs" / str(baseline["run"]))
    if is_baseline(name):
        raise EvalError(f"no model was evaluated as {name} (grpo-train eval --model); grpo-train runs lists them")
    return find_run(root, name)[0]


def _folder(given: str, root: Path) -> Path | None:
    """The directory of ``--model``; None for a hub ID. Raises EvalError for a directory without a model."""
    for candidate in (root / BACKBONES.get(given, given), Path(given).expanduser().absolute()):
        if candidate.is_dir():
            if not holds_model(candidate):
                raise EvalError(f"--model {given}: {NO_MODEL}", code="no_model")
            return candidate.resolve()
    return None


def _pinned(given: str, root: Path) -> tuple[str, str]:
    """Name and commit of a hub model. Raises EvalError, PolicyError."""
    try:
        resolved = resolve_backbone(given, root)
    except PolicyError as error:
        reason = str(error).removeprefix(f"model.backbone '{given}' ")
        raise EvalError(f"--model {given}: {reason}", code="no_model") from error
    check_hub_model(resolved)
    name, commit = hub_id(resolved)
    commit = commit or hub_commit(name)
    if not commit:
        hint = "the hub has no such model, or it needs a token (hf auth login, or HF_TOKEN)"
        raise EvalError(f"--model {given}: {hint}", code="no_model")
    return name, commit


def _base_of_adapter(folder: Path, root: Path) -> str:
    """The base of an adapter: that of its checkpoint, or the one that peft recorded. Raises PolicyError."""
    recorded = base_of_checkpoint(folder, root)
    if not recorded:
        config = read_json(model_folder(folder) / "adapter_config.json") or {}
        name, commit = str(config.get("base_model_name_or_path") or ""), str(config.get("revision") or "")
        recorded = f"{name}@{commit}" if re.fullmatch("[0-9a-f]{40}", commit) else name
    return found_base(recorded, folder, root)


def found_base(base: str, folder: Path, root: Path) -> str:
    """The base model that an adapter names. Raises PolicyError where there is none of this name any more."""
    try:
        resolve_backbone(base, root)
    except PolicyError as error:
        raise PolicyError(f"base model '{base}' of {folder} not found: set --base") from error
    return base


def _name(request: EvalRequest, default: str) -> str:
    """The name of a baseline. Raises EvalError."""
    name = request.name if request.name is not None else re.sub(r"[^A-Za-z0-9._-]+", "-", default).lstrip("._-")
    name = name.removeprefix(MARK)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}", name):
        raise EvalError(
            f"--name {name}: invalid name for a baseline; use up to 96 letters, digits, '.', '_' and '-', "
            "starting with a letter or digit"
        )
    return MARK + name


def _same_folder(name: str, model: str, root: Path) -> bool:
    folder = Path(name).expanduser()
    return folder.is_dir() and os.path.realpath(root / model) == os.path.realpath(folder)
