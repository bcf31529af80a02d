"""``scheduler`` and ``slurm`` of a box in boxes.yaml."""

from __future__ import annotations

from typing import Any

from grpo_train.config.yaml_text import InvalidYaml, value_of
from remote.base import BoxesError
from remote.protocol.slurm import JobOptions


def read_scheduler(node: Any, file: str) -> str:
    """The scheduler of a YAML node. Raises BoxesError."""
    if node.value != "slurm":
        raise _refuse(node, file, f"'scheduler' must be slurm, not {node.value!r}; without it a run is a tmux session")
    return "slurm"


def read_job_options(node: Any, file: str) -> dict[str, Any]:
    """What jobs ask for, checked. Raises BoxesError that names line and key."""
    try:
        value = value_of(node)
    except InvalidYaml as error:
        raise _refuse(node, file, f"'slurm': {error}") from error
    if not isinstance(value, dict):
        raise _refuse(node, file, "'slurm' must be a mapping, such as {partition: gpu, gpus: 8, time: \"24:00:00\"}")
    try:
        JobOptions().changed({str(key): item for key, item in value.items()})
    except ValueError as error:
        raise _refuse(node, file, f"'slurm': {error}") from error
    return {str(key): item for key, item in value.items()}


def _refuse(node: Any, file: str, problem: str) -> BoxesError:
    return BoxesError(f"{file}:{node.start_mark.line + 1}: {problem}")
