"""Starting weights on this box: adapter and model directories under the root."""

from __future__ import annotations

import os
from pathlib import Path

from grpo_train.run_dir import utc_from
from grpo_train.run_dir.manifest import MANIFEST, problem_of
from remote.agent.context import BoxContext
from remote.protocol.operations import CheckWeightsReply, CheckWeightsRequest, ListWeightsReply, NoParameters, Row

FOLDERS = ("checkpoints", "lora_checkpoints", "models")
"""Directories of the root that are searched."""
MAX_DEPTH = 3
"""``models/OWNER/NAME``, ``lora_checkpoints/RUN/step_N``."""
MAX_WEIGHTS = 1_000
_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin")


def list_weights(box: BoxContext, request: NoParameters) -> ListWeightsReply:
    """Adapter and model directories under :data:`FOLDERS`, newest first."""
    found: list[tuple[float, Row]] = []
    for folder in FOLDERS:
        for path in _search(box.root / folder, MAX_DEPTH):
            modified = path.stat().st_mtime
            name = path.relative_to(box.root / folder).as_posix()
            row = {
                "name": name,
                "path": path.relative_to(box.root).as_posix(),
                "kind": weights_kind(path),
                "modified": utc_from(modified),
            }
            found.append((modified, row))
    found.sort(key=lambda pair: pair[0], reverse=True)
    return {"weights": [row for _, row in found[:MAX_WEIGHTS]]}


def check_weights(box: BoxContext, request: CheckWeightsRequest) -> CheckWeightsReply:
    """Whether a directory can start a run. Sizes are compared with its manifest; checksums are left to the engine."""
    path = box.root / Path(request.path).expanduser()
    kind, problem = weights_kind(path), ""
    checkpoint = path.parent if path.name == "model" else path
    if not path.is_dir():
        problem = "not a directory on this box"
    elif not kind:
        problem = "neither an adapter (adapter_config.json) nor a model (config.json), with weights"
    elif (checkpoint / MANIFEST).exists():
        problem = problem_of(checkpoint)
    return {"path": box.relative(path), "kind": "" if problem else kind, "problem": problem}


def weights_kind(path: Path) -> str:
    """``adapter`` or ``model`` for a directory with weights, or with a ``model/`` that has them; else ""."""
    for folder in (path, path / "model"):
        if any(next(folder.glob(pattern), None) for pattern in _WEIGHTS):
            if (folder / "adapter_config.json").is_file():
                return "adapter"
            if (folder / "config.json").is_file():
                return "model"
    return ""


def _search(folder: Path, depth: int) -> list[Path]:
    """Directories with weights below a folder; what is inside one of them is not searched."""
    try:
        with os.scandir(folder) as entries:
            paths = [Path(entry.path) for entry in entries if entry.is_dir() and not entry.name.startswith(".")]
    except OSError:
        return []
    found = []
    for path in sorted(paths):
        if weights_kind(path):
            found.append(path)
        elif depth > 1:
            found += _search(path, depth - 1)
    return found
