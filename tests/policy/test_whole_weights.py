"""Weights are loaded whole: a tensor that is missing or not used is an error, and parts of other models are named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from grpo_train.config.schema import Model
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError, weight_files
from grpo_train.run_dir import RunDir, sha256
from grpo_train.run_dir.manifest import MANIFEST
from grpo_train.train.worker import main
from tests.support.engine import resume_here, train_here, write_micro

Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Tensors]
EMBEDDING = "model.embed_tokens.weight"


def load(root: Path, weights: Path | None = None, adapter: str = "none", trainable: bool = True) -> Policy:
    settings = Model.model_validate({"backbone": "tiny", "adapter": adapter, "device": "cpu"})
    return load_policy(settings, root, torch.device("cpu"), weights=weights, trainable=trainable)


def rewrite(file: Path, change: Change) -> None:
    save_file({name: tensor.clone() for name, tensor in change(load_file(file)).items()}, file, {"format": "pt"})


def prefixed(prefix: str) -> Change:
    return lambda tensors: {prefix + name: tensor for name, tensor in tensors.items()}


def without(part: str) -> Change:
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if part not in name}


def beside(*names: str) -> Change:
    return lambda tensors: {**tensors, **{name: torch.ones(2, 2) for name in names}}


def cut(tensors: Tensors) -> Tensors:
    return {**tensors, EMBEDDING: tensors[EMBEDDING][:9]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (prefixed("_orig_mod."), r"missing tensors \(15\): .*unknown tensors \(14\): _orig_mod\.model\.embed_tokens"),
        (prefixed("module."), r"missing tensors .*unknown tensors .*module\.model\.embed_tokens"),
        (without("layers.0.mlp.up_proj"), r"used: missing tensors \(1\): model\.layers\.0\.mlp\.up_proj\.weight;"),
        (without(EMBEDDING), r"missing tensors .*model\.embed_tokens\.weight"),
        (without(""), r"missing tensors"),
        (beside("score.weight"), r"used: unknown tensors \(1\): score\.weight;"),
        (
            beside("model.layers.1.mlp.up_proj.weight"),
            r"unknown tensors \(1\): model\.layers\.1\.mlp\.up",
        ),
        (cut, r"used: missing tensors \(1\): model\.embed_tokens\.weight \[9, 48\], not \[512, 48\];"),
    ],
)
def test_a_model_that_is_not_whole_is_refused(make_root: Callable[[], Path], change: Change, message: str) -> None:
    root = make_root()
    rewrite(root / "models" / "tiny" / "model.safetensors", change)
    for trainable in (True, False):
        with pytest.raises(PolicyError, match=message):
            load(root, trainable=trainable)
    folder = shutil.move(root / "models" / "tiny", root / "checkpoint")
    with pytest.raises(PolicyError, match=message):
        load(root, Path(folder))


def test_parts_of_other_models_are_dropped_by_name(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root / "models" / "tiny" / "model.safetensors"
    before = load(root).model.state_dict()
    assert "not loaded" not in capsys.readouterr().out
    extra = ("vision_tower.a", "model.visual.b.c", "multi_modal_projector.d", "mtp.layers.0.e", "h.0.attn.bias")
    rewrite(file, beside(*extra))
    after = load(root).model.state_dict()
    line = "not loaded, as Qwen2ForCausalLM is a text model: mtp, multi_modal_projector, vision_tower, visual"
    assert line in capsys.readouterr().out
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: {n.replace(".model.layers", ".language_model.model.layers"): t for n, t in tensors.items()},
         r"missing tensors \(14\): .*unknown tensors \(14\): base_model\.model\.language_model\.model\.layers\.0"),
        (without(""), r"missing tensors \(14\)"),
        (without("q_proj.lora_B"), r"used: missing tensors \(1\): .*q_proj\.lora_B"),
        (beside("base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"), r"unknown tensors \(1\): .*layers\.7"),
    ],
)  # fmt: skip
def test_an_adapter_that_is_not_whole_is_refused(
    golden: Callable[[str], RunDir], tmp_path: Path, change: Change, message: str
) -> None:
    run = golden("lora")
    adapter = Path(shutil.copytree(run.training_state / "step_6" / "model", tmp_path / "adapter"))
    load(run.root, adapter, "lora")
    rewrite(adapter / "adapter_model.safetensors", change)
    for trainable in (True, False):
        with pytest.raises(PolicyError, match=message):
            load(run.root, adapter, "lora", trainable)


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "adapter_model.bin"])
def test_a_damaged_adapter_is_named(golden: Callable[[str], RunDir], tmp_path: Path, name: str) -> None:
    run = golden("lora")
    adapter = Path(shutil.copytree(run.training_state / "step_6" / "model", tmp_path / "adapter"))
    (adapter / "adapter_model.safetensors").unlink()
    (adapter / name).write_bytes(b"no tensors")
    with pytest.raises(PolicyError, match=f"cannot load the adapter {adapter}"):
        load(run.root, adapter, "lora")


def as_bin(folder: Path, change: Change = dict) -> None:
    """Store a model's weights as ``pytorch_model.bin``."""
    torch.save(change(load_file(folder / "model.safetensors")), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_weights_are_hashed_in_any_format(root: Path, capfd: pytest.CaptureFixture[str]) -> None:
    base = root / "models" / "tiny"
    other = Path(shutil.copytree(base, root / "models" / "other"))
    as_bin(base)
    as_bin(other, lambda tensors: {name: 1.01 * tensor for name, tensor in tensors.items()})
    cfg = write_micro(root, model__adapter="lora", run__total_steps=2)
    run = train_here(root, cfg, "run", "--until", "1")
    step = run.training_state / "step_1"
    recorded = json.loads((step / "training_info.json").read_text())["base_model"]
    assert recorded == {"name": "models/tiny", "weights_sha256": sha256(base / "pytorch_model.bin")}
    load(root, step / "model", "lora")
    shutil.rmtree(base)
    other.rename(base)
    capfd.readouterr()
    assert main(["--cfg", str(cfg), "--root", str(root), "--ckpt", str(step)]) == 1
    assert "was trained on models/tiny, whose weights differ from" in capfd.readouterr().err
    with pytest.raises(PolicyError, match="whose weights differ from"):
        load(root, step / "model", "lora")


def test_a_checkpoint_without_a_hash_resumes_and_records_it(
    golden: Callable[[str], RunDir], capfd: pytest.CaptureFixture[str]
) -> None:
    run = golden("lora")
    info, manifest = (run.training_state / "step_5" / name for name in ("training_info.json", MANIFEST))
    wanted = json.loads(info.read_text())["base_model"]
    info.write_text(info.read_text().replace(wanted["weights_sha256"], ""))
    entry = {"sha256": sha256(info), "size": info.stat().st_size}
    record = json.loads(manifest.read_text())
    record["files"]["training_info.json"] |= {key: entry[key] for key in record["files"]["training_info.json"]}
    manifest.write_text(json.dumps(record))
    resume_here(run, "5")
    assert json.loads((run.training_state / "step_6" / "training_info.json").read_text())["base_model"] == wanted
    assert "models/tiny: the checkpoint has no SHA-256 of these weights; recorded from now on" in capfd.readouterr().out


def test_files_that_hold_weights() -> None:
    shards = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    others = ["config.json", "training_args.bin", "pytorch_model.bin.index.json"]
    assert weight_files([*others, *reversed(shards)]) == shards
    assert weight_files([*others, *shards, "model.safetensors"]) == ["model.safetensors"]


@pytest.mark.parametrize("content", [b"\xff\x00", b"[1"], ids=["binary", "cut"])
def test_a_generation_config_that_cannot_be_read_is_refused(root: Path, content: bytes) -> None:
    """It names end tokens, and transformers loads the model without them."""
    (root / "models" / "tiny" / "generation_config.json").write_bytes(content)
    with pytest.raises(PolicyError, match=r"cannot load the model .*: generation_config\.json: "):
        load(root)
