"""Starting weights: a full model needs no backbone, and an incomplete one makes no run."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from grpo_train.policy.locate import PolicyError, check_files
from grpo_train.run_dir.files import read_json
from grpo_train.train.worker import main
from tests.support.engine import assert_same_run, resume_here, train_here, write_config


@pytest.fixture
def full_model(tiny_model: Path, tmp_path: Path) -> Path:
    """A model outside any root."""
    return Path(shutil.copytree(tiny_model, tmp_path / "full"))


@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_full_model_needs_no_backbone(full_model: Path, tmp_path: Path, adapter: str) -> None:
    root = tmp_path / "root"
    config = write_config(tmp_path, run__total_steps=2, model__adapter=adapter, algorithm__beta=0.02)
    run = train_here(root, config, "cut", "--ckpt", str(full_model), "--until", "1")
    resume_here(run, total=2)
    assert_same_run(run, train_here(root, config, "whole", "--ckpt", str(full_model)), 2)
    info = read_json(run.training_state / "step_2" / "training_info.json") or {}
    assert (info["base_model"]["name"], info["device"]) == (str(full_model), "CPU")


def test_a_relative_path_is_recorded_whole(full_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(full_model.parent)
    config = write_config(tmp_path, run__total_steps=1)
    run = train_here(tmp_path / "root", config, "relative", "--ckpt", "full")
    info = read_json(run.training_state / "step_1" / "training_info.json") or {}
    assert info["base_model"]["name"] == str(full_model)


@pytest.mark.parametrize(
    ("pattern", "message"), [("*.safetensors", "holds no weights"), ("tokenizer*", "holds no tokenizer")]
)
def test_an_incomplete_model_makes_no_run(
    full_model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], pattern: str, message: str
) -> None:
    for file in full_model.glob(pattern):
        file.unlink()
    root = tmp_path / "root"
    config = write_config(tmp_path)
    assert main(["--cfg", str(config), "--root", str(root), "--ckpt", str(full_model)]) == 1
    assert f"error: {full_model} {message}" in capfd.readouterr().err
    assert not (root / "training_runs").exists() or not os.listdir(root / "training_runs")


def test_an_incomplete_backbone_makes_no_run(make_root: Callable[[], Path], tmp_path: Path) -> None:
    root = make_root()
    (root / "models" / "tiny" / "model.safetensors").unlink()
    assert main(["--cfg", str(write_config(tmp_path)), "--root", str(root)]) == 1
    assert not (root / "training_runs").exists()


def test_a_missing_shard_is_named(full_model: Path) -> None:
    shards = {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}
    (full_model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(PolicyError, match=r"lacks model-00002-of-00002\.safetensors, which model\.safetensors\.index"):
        check_files(full_model)


def test_a_config_that_cannot_be_read_is_named(full_model: Path) -> None:
    (full_model / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PolicyError, match=r"config\.json cannot be read \(config\.json: invalid UTF-8 at byte 0\)"):
        check_files(full_model)


def test_an_adapter_needs_its_weights(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(PolicyError, match=r"holds no weights \(adapter_model\.\*\)"):
        check_files(tmp_path)
    (tmp_path / "adapter_model.safetensors").touch()
    check_files(tmp_path)


def test_a_hub_id_passes() -> None:
    check_files(Path("acme/tiny"))
