"""Checkpoints to evaluate: finding the run, and picking the steps of ``--steps`` or ``--ckpt-path``. Torch-free."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.config import load_config, read_config_text
from grpo_train.config.schema import Config
from grpo_train.evaluation.request import EvalError, EvalRequest
from grpo_train.run_dir import RunDir, RunDirError, list_checkpoints, open_run
from grpo_train.run_dir.files import read_json

STEPS_HINT = "use all, latest, final or step numbers such as 0,5,10 (0 is the model the run started from)"
NO_MODEL = "no model found (config.json or adapter_config.json)"


@dataclass(frozen=True)
class Target:
    """One checkpoint to evaluate."""

    name: str
    """``step_10``, or the name of ``--ckpt-path``."""
    step: int
    path: str
    """The checkpoint's directory; the root for the backbone (step 0 of a run without ``--ckpt``)."""
    key: dict[str, Any] = field(default_factory=dict, compare=False)
    """Cache key of its samples, see :mod:`grpo_train.evaluation.results.keys`; set when its evaluation starts."""


@dataclass(frozen=True)
class Unfinished:
    """A checkpoint without a complete result, as the table lists it."""

    name: str
    step: int
    status: str
    """``failed``, ``skipped`` (removed after it was requested), ``damaged`` or ``partial``."""
    error: str = ""
    code: str = ""
    done: int | None = None
    """Finished samples, of ``total``."""
    total: int | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, str]) -> Unfinished:
        """Read a row of :func:`grpo_train.run_dir.read_table`."""
        texts = (row.get(name) or "" for name in ("done", "total"))
        done, total = (int(text) if text.isdecimal() else None for text in texts)
        return cls(
            row["name"], int(row["step"]), row["status"], row.get("error") or "", row.get("code") or "", done, total
        )


def find_run(root: Path, name: str) -> tuple[RunDir, Path, Config]:
    """A run by name or path, the folder of its checkpoints, and its config.

    A run of the older layout (``rl_runs/RUN/step_N``) has no config: the defaults apply. Raises RunDirError,
    ConfigError.
    """
    given = Path(name).expanduser()
    is_name = len(given.parts) == 1
    if not (is_name and (root / "training_runs" / name).exists()):
        for older in [root / "rl_runs" / name] if is_name else [root / given, given.absolute()]:
            if is_older(older) and older.is_dir():
                return RunDir(older), older, Config()
    run = open_run(root, name)
    if not run.config_file.exists():
        raise RunDirError(f"{run.name} has no config.yaml because it never started")
    config = load_config(read_config_text(run.config_file), source=str(run.config_file))
    return run, run.training_state, config


def pick_targets(run: RunDir, checkpoints: Path, request: EvalRequest) -> tuple[list[Target], list[Unfinished]]:
    """The checkpoints of ``--steps`` or ``--ckpt-path``, each once, and those that cannot be evaluated.

    Raises EvalError, RunDirError.
    """
    if request.ckpt_path:
        return [_target_at(request.ckpt_path, request.name, run.root, checkpoints)], []
    if request.steps == "all":
        older = is_older(run.path)  # without manifests, every step counts as complete
        found = list_checkpoints(checkpoints)
        targets = [Target(f"step_{c.step}", c.step, str(c.path)) for c in found if older or not c.problem]
        unusable = [
            Unfinished(f"step_{c.step}", c.step, "failed", c.problem, "bad_checkpoint")
            for c in found
            if c.problem and not older
        ]
        if not found:
            raise EvalError(f"{run.name} has no checkpoints yet", code="no_checkpoint")
        return targets, unusable
    targets, unusable = [], []
    for selector in _selectors(request.steps):
        if selector == "0":
            target = Target("step_0", 0, str(run.root / (run.launched().get("ckpt") or "")))
        else:
            try:
                owner = RunDir(checkpoints.parent if checkpoints.name == "training_state" else checkpoints)
                checkpoint = owner.checkpoint(selector, hint="evaluate with --steps {step}")
            except RunDirError as error:
                step = int(selector) if selector.isdigit() else 0
                unusable.append(Unfinished(f"step_{selector}", step, "failed", str(error), error.code))
                continue
            target = Target(f"step_{checkpoint.step}", checkpoint.step, str(checkpoint.path))
        if target not in targets:
            targets.append(target)
    if not targets and len(unusable) == 1:
        raise EvalError(unusable[0].error, code=unusable[0].code)
    return targets, unusable


def _selectors(steps: str) -> list[str]:
    """The parts of ``--steps``: latest, final, or a step number without leading zeros. Raises EvalError."""
    parts = [part.strip() for part in steps.split(",") if part.strip()]
    if not parts:
        raise EvalError(f"--steps is empty; {STEPS_HINT}")
    for part in parts:
        if part not in ("latest", "final") and not (part.isascii() and part.isdigit()):
            raise EvalError(f"--steps {steps}: '{part}' is not a step; {STEPS_HINT}")
    return [part if part in ("latest", "final") else str(int(part)) for part in parts]


def _target_at(ckpt_path: Path, name: str | None, root: Path, checkpoints: Path) -> Target:
    """The target of ``--ckpt-path``. Raises EvalError."""
    path = _absolute(ckpt_path, root)
    if not holds_model(path):
        raise EvalError(f"--ckpt-path {ckpt_path}: {NO_MODEL}", code="no_checkpoint")
    name = _result_name(path, name, checkpoints)
    if path.is_symlink():  # step_latest moves during training
        path = path.parent / os.readlink(path)
    match = re.fullmatch(r"step_(\d+)", path.name)
    info = read_json(path / "training_info.json") or {}
    step = int(info["step"]) if "step" in info else int(match[1]) if match else 0
    return Target(name, step, str(path))


def _result_name(path: Path, name: str | None, checkpoints: Path) -> str:
    """Name of the results of ``--ckpt-path``; ``checkpoints`` holds the run's own steps. Raises EvalError."""
    option, name = ("--name", name) if name is not None else ("--ckpt-path", path.name)
    if not name or name.startswith(".") or "/" in name or not name.isprintable() or len(name.encode()) > 128:
        raise EvalError(
            f"{option} {name}: invalid name for results; set --name to at most 128 bytes, without '/' or a leading '.'"
        )
    if re.fullmatch(r"step_\d+", name) and os.path.realpath(path) != os.path.realpath(checkpoints / name):
        raise EvalError(f"{option} {name}: this name is reserved for the run's own steps; set another --name")
    return name


def _absolute(path: Path, root: Path) -> Path:
    """A path as given, or relative to the root if it exists only there."""
    given = path.expanduser()
    return root / given if not given.exists() and (root / given).exists() else given.absolute()


def owning_run(ckpt_path: Path | None, root: Path) -> Path:
    """The run of ``training_runs/RUN/training_state/step_N`` or ``rl_runs/RUN/step_N``. Raises EvalError."""
    folder = _absolute(ckpt_path, root).parent if ckpt_path else Path()
    if folder.name == "training_state":
        return folder.parent
    if is_older(folder):
        return folder
    raise EvalError("--training-run is required unless --ckpt-path is a step of a run")


def is_older(run: Path) -> bool:
    """Whether a run's path is of the older layout."""
    return run.parent.name == "rl_runs"


def holds_model(path: Path) -> bool:
    """Whether a directory looks like a model, an adapter, or a checkpoint of one."""
    names = ("config.json", "adapter_config.json")
    return any((path / inner / name).is_file() for inner in ("", "model") for name in names)
