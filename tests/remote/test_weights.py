"""Starting weights of a box: listed under the root, and one path checked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from grpo_train.run_dir import write_manifest
from remote.agent.box import BoxContext
from remote.agent.checkpoints import check_weights, list_weights
from remote.protocol.jobs import CheckWeightsRequest
from remote.protocol.operations import NoParameters


@pytest.fixture
def box(root: Path) -> BoxContext:
    return BoxContext.from_settings({"root": str(root)})


def directory(path: Path, *files: str, age: float = 0.0) -> Path:
    path.mkdir(parents=True)
    for file in files:
        (path / file).write_text("{}")
    os.utime(path, (1e9 - age, 1e9 - age))
    return path


def test_adapters_and_models_are_listed_newest_first(box: BoxContext, root: Path) -> None:
    directory(root / "models/owner/base", "config.json", "model.safetensors", age=3)
    directory(root / "lora_checkpoints/a", "adapter_config.json", "adapter_model.safetensors", age=1)
    directory(root / "checkpoints/run/step_10/model", "adapter_config.json", "adapter_model.safetensors")
    os.utime(root / "checkpoints/run/step_10", (1e9 - 2, 1e9 - 2))
    directory(root / "models/no_weights", "config.json")
    directory(root / "models/.hidden", "config.json", "model.safetensors")
    rows = list_weights(box, NoParameters())["weights"]
    assert [(row["name"], row["path"], row["kind"]) for row in rows] == [
        ("a", "lora_checkpoints/a", "adapter"),
        ("run/step_10", "checkpoints/run/step_10", "adapter"),
        ("owner/base", "models/owner/base", "model"),
    ]


def test_a_root_without_weights(box: BoxContext) -> None:
    assert list_weights(box, NoParameters()) == {"weights": []}


def test_a_path_is_checked(box: BoxContext, root: Path, tmp_path: Path) -> None:
    model = directory(tmp_path / "elsewhere", "config.json", "model.safetensors")
    adapter = directory(root / "adapter", "adapter_config.json", "adapter_model.safetensors")
    for path, kind, problem in (
        (str(model), "model", ""),
        ("adapter", "adapter", ""),
        (str(adapter), "adapter", ""),
        ("missing", "", "not a directory"),
        ("adapter/adapter_config.json", "", "not a directory"),
        (".", "", "neither"),
    ):
        reply = check_weights(box, CheckWeightsRequest(path))
        assert reply["kind"] == kind, path
        assert problem in reply["problem"]
    assert check_weights(box, CheckWeightsRequest(str(adapter)))["path"] == "adapter"


def test_a_damaged_checkpoint_is_refused(box: BoxContext, root: Path) -> None:
    step = root / "checkpoints/step_1"
    directory(step / "model", "adapter_config.json", "adapter_model.safetensors")
    write_manifest(step, step=1)
    assert check_weights(box, CheckWeightsRequest("checkpoints/step_1"))["kind"] == "adapter"
    (step / "model" / "adapter_model.safetensors").unlink()
    (step / "model" / "adapter_model-1.safetensors").write_text("")
    reply = check_weights(box, CheckWeightsRequest("checkpoints/step_1/model"))
    assert (reply["kind"], "is missing" in reply["problem"]) == ("", True)
