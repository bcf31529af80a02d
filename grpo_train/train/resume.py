"""Differences between a saved state and the process that resumes it: errors, or reasons why it is not bit-exact."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.config.loading import flat_keys
from grpo_train.config.schema import Config
from grpo_train.run_dir.display import setting
from grpo_train.train.checkpoint import CheckpointError

TRAINING_SECTIONS = ("model", "rollout", "algorithm", "optimizer", "train", "task", "curriculum")
"""Sections that training depends on, ``train`` by rounding alone; it also depends on ``run.seed``, and on
``run.total_steps`` where the learning rate falls until then."""
TRIED_ON = ("device", "torch", "transformers")
"""What a trial at startup depends on beside :data:`TRIED_SECTIONS`: compilers, kernels, graphs."""
TRIED_SECTIONS = ("model", "rollout", "train")
Changes = dict[str, tuple[Any, Any]]
"""Changed keys as section.key: (saved value, current value)."""


def config_changes(saved: Mapping[str, Any], config: Config) -> Changes:
    """Keys that training depends on whose value differs from the saved config's."""
    before, after = flat_keys(saved), flat_keys(config.model_dump(mode="json"))
    total = [] if config.optimizer.schedule == "constant" else ["run.total_steps"]
    keys = ["run.seed", *total, *filter(_is_of_training, after)]
    return {key: (before[key], after[key]) for key in keys if key in before and before[key] != after[key]}


def new_keys(saved: Mapping[str, Any], config: Config) -> list[str]:
    """Keys that training depends on which the saved config does not have: an earlier version wrote it, or a section was
    added. None without a saved config."""
    before, after = flat_keys(saved), flat_keys(config.model_dump(mode="json"))
    return [key for key in after if _is_of_training(key) and key not in before] if before else []


def _is_of_training(key: str) -> bool:
    return re.split(r"[.[]", key)[0] in TRAINING_SECTIONS


def check_position(changes: Changes, step: int, config: Config, config_file: Path) -> None:
    """Raise CheckpointError if a changed key determines the position in the data or in the saved buffer."""
    fixed = ["algorithm.num_iterations", "algorithm.updates_per_buffer"]
    position = step % config.steps_per_buffer
    if position:
        fixed += ["rollout.buffer_size", "rollout.num_generations", "algorithm.beta"]
    changed = [f"{key} ({old} -> {new})" for key, (old, new) in changes.items() if key in fixed]
    if changed:
        hint = f", or resume from step_{step - position}, where a buffer ends" if position else ""
        raise CheckpointError(
            f"{config_file}: {', '.join(changed)} cannot change at step {step}: the saved buffer or position in the "
            f"data depends on it; restore the value{hint}"
        )


def prompts_drawn(info: Mapping[str, Any], step: int, config: Config, *, has_buffer: bool) -> int:
    """Prompts that the first ``step`` steps have drawn, from the saved ``training_info.json``.

    An earlier version counted buffers, all of the saved ``rollout.buffer_size``, and saved what a filter drew beyond.
    """
    if "num_prompts" in info:
        return int(info["num_prompts"])
    size = flat_keys(info.get("config") or {}).get("rollout.buffer_size", config.rollout.buffer_size)
    buffers = step // config.steps_per_buffer + bool(has_buffer and step % config.steps_per_buffer)
    return buffers * int(size) + int(info.get("extra_prompts", 0))


def data_differences(info: Mapping[str, Any], data: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Tasks whose training problems are not the saved ones, from the saved ``training_info.json``."""
    saved = info.get("data") or {}
    return [
        f"training problems{f' of {label}' if label else ''}: saved with {saved[label].get('problems')}, resumed with "
        f"{now['problems']}; they differ, and so does their order"
        for label, now in data.items()
        if label in saved and saved[label] != now
    ]


def process_differences(info: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Reasons in the processes why a resume is not bit-exact, from the saved ``training_info.json`` and its current
    values."""
    reasons = []
    for key, name in (("world_size", "processes"), ("threads", "threads"), ("device", "device")):
        if key in info and info[key] != current[key]:
            reasons.append(f"{name}: saved with {info[key]}, resumed with {current[key]}")
    for library, version in (info.get("versions") or {}).items():
        if version != current["versions"].get(library):
            reasons.append(f"{library}: saved with {version}, resumed with {current['versions'].get(library)}")
    return reasons


def trial_differences(info: Mapping[str, Any], current: Mapping[str, Any], changes: Changes) -> list[str]:
    """Reasons why what failed when it was tried before a resume may work now, from the saved ``training_info.json``
    and its current values; none = it is not tried again, so that the run takes the same path."""
    before, now = ({"device": one.get("device"), **(one.get("versions") or {})} for one in (info, current))
    reasons = [
        f"{name}: saved with {before[name]}, resumed with {now[name]}"
        for name in TRIED_ON
        if before.get(name) not in (None, now[name])
    ]
    keys = (key for key in changes if re.split(r"[.[]", key)[0] in TRIED_SECTIONS)
    return reasons + [f"{key}: was {setting(changes[key][0])}, is {setting(changes[key][1])}" for key in keys]


def library_versions() -> dict[str, str]:
    """Versions of the libraries that numbers depend on."""
    return {"torch": torch.__version__, "transformers": transformers.__version__, "python": platform.python_version()}
