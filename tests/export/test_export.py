"""``grpo-train export``: what it writes loads elsewhere and says what our evaluation says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_train.backup.leftovers import find_leftovers
from grpo_train.config import with_changes
from grpo_train.export.card import model_card
from grpo_train.export.plan import ExportError, ExportRequest, plan_export
from grpo_train.export.write import Exported, _boot, write_export
from grpo_train.run_dir import RunDir, RunDirError, create_run
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.processes import start_ticks
from remote.boxes import Box
from remote.copying import Copier
from tests.support.engine import DAMAGES, damage, train_here, write_config
from tests.support.evaluating import copy_of, evaluate_here
from tests.support.killing import disk_calls, killed_at
from tests.support.mounts import fill, small_disk
from tests.support.saving import make_trainer

COMMIT = "a" * 40
BUDGET = 40


@pytest.fixture(scope="module")
def trained(make_root: Callable[[], Path]) -> RunDir:
    """Two steps of an adapter on additions, evaluated; the base came from the hub by fetch-model."""
    root = make_root()
    (root / "models" / "tiny" / ".hub.json").write_text(json.dumps({"model": f"acme/tiny@{COMMIT}"}))
    config = write_config(root, run__total_steps=2, model__adapter="lora", optimizer__learning_rate=3e-3)
    run = train_here(root, config, "trained")
    assert evaluate_here(root, "trained", steps="0,2", num_problems=16) == 0
    return run


def export(run: RunDir, to: Path, **options: Any) -> Exported:
    return write_export(plan_export(ExportRequest(run.name, to=to, root=run.root, **options)))


def evaluated(run: RunDir) -> list[tuple[str, str]]:
    """Question and completion of our evaluation of step 2."""
    (file,) = run.root.glob("eval_runs/trained_addition/step_2_addition/completions.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row["question"], row["completion"]) for row in rows]


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """What a chat API answers, greedily."""
    inputs = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(
        **inputs, max_new_tokens=BUDGET, do_sample=False, stop_strings="</answer>", tokenizer=tokenizer
    )
    text: str = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    return text


def test_merged_model_answers_as_evaluated(trained: RunDir, tmp_path: Path) -> None:
    export(trained, tmp_path / "merged", merge=True)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "merged")
    assert model.dtype == torch.float32
    for question, completion in evaluated(trained):
        assert answer(model, tokenizer, question) == completion


def test_adapter_loads_in_peft_and_answers_as_evaluated(trained: RunDir, tmp_path: Path) -> None:
    export(trained, tmp_path / "adapter")
    saved = read_json(tmp_path / "adapter" / "adapter_config.json") or {}
    assert (saved["base_model_name_or_path"], saved["revision"]) == ("acme/tiny", COMMIT)
    base = AutoModelForCausalLM.from_pretrained(trained.root / "models" / "tiny")
    model = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "adapter")
    for question, completion in evaluated(trained):
        assert answer(model, tokenizer, question) == completion


def test_weights_that_come_home_load_as_they_are(
    trained: RunDir, make_root: Callable[[], Path], tmp_path: Path
) -> None:
    """``grpo-tui get RUN:STEP`` of an adapter and of full weights, in peft and in transformers."""
    full = create_run(make_root(), {}, "full")
    trainer = make_trainer(full.root / "models" / "tiny", "none")
    trainer.save(full, 1)
    folders = {}
    for name, root in (("trained:2", trained.root), ("full:1", full.root)):
        with Copier(Box("local", kind="local", root=str(root)), ask_host_key=lambda question: True) as copier:
            (folders[name],) = copier.get(name, tmp_path).paths
    base = AutoModelForCausalLM.from_pretrained(trained.root / "models" / "tiny")
    model = PeftModel.from_pretrained(base, folders["trained:2"])
    adapter = load_file(Path(folders["trained:2"], "adapter_model.safetensors"))
    loaded = get_peft_model_state_dict(model)
    assert adapter.keys() == loaded.keys()
    assert all(adapter[name].equal(loaded[name]) for name in adapter)
    assert any(tensor.any() for name, tensor in adapter.items() if "lora_B" in name), "it was trained"
    loaded = AutoModelForCausalLM.from_pretrained(folders["full:1"]).state_dict()
    saved = trainer.policy.model.state_dict()
    assert saved.keys() == loaded.keys()
    assert all(saved[name].equal(loaded[name]) for name in saved)
    assert AutoTokenizer.from_pretrained(folders["full:1"]).decode([1])


@pytest.mark.parametrize("merge", [False, True], ids=["adapter", "merged"])
def test_no_path_of_this_machine_is_exported(trained: RunDir, tmp_path: Path, merge: bool) -> None:
    exported = export(trained, tmp_path / "out", merge=merge)
    for name in [*exported.files, "export.json"]:
        data = (tmp_path / "out" / name).read_bytes()
        assert str(trained.root).encode() not in data, name
        assert b"models/tiny" not in data, name


def test_no_directory_of_own_functions_is_in_the_card(trained: RunDir, tmp_path: Path) -> None:
    plan = plan_export(ExportRequest(trained.name, to=tmp_path / "out", root=trained.root))
    own = {"name": "/home/me/task.py:load", "rewards": ["/home/me/my.py:short", "trl:/home/me/my.py:polite"]}
    card = model_card(replace(plan, config=with_changes(plan.config, task=own)), [], None)
    assert "/home/me" not in card
    assert "- Rewards: my.py:short, trl:my.py:polite" in card


def test_types_of_weights(trained: RunDir, tmp_path: Path) -> None:
    merged = export(trained, tmp_path / "merged", merge=True, dtype="bfloat16")
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype="auto").dtype == torch.bfloat16
    full = export(trained, tmp_path / "full", merge=True)
    assert merged.files["model.safetensors"] < 0.6 * full.files["model.safetensors"]
    half = export(trained, tmp_path / "half", dtype="bfloat16")
    whole = export(trained, tmp_path / "whole")
    assert half.files["adapter_model.safetensors"] < whole.files["adapter_model.safetensors"]


def test_model_card(trained: RunDir, tmp_path: Path) -> None:
    export(trained, tmp_path / "out")
    _, metadata, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    facts = yaml.safe_load(metadata)
    assert (facts["base_model"], facts["base_model_relation"]) == ("acme/tiny", "adapter")
    (result,) = facts["model-index"][0]["results"]
    summary = read_json(trained.root / "eval_runs/trained_addition/step_2_addition/summary.json") or {}
    assert result["metrics"][0]["value"] == round(summary["metrics"]["accuracy"], 4)
    assert f"commit `{COMMIT}`" in text
    assert text.count("| addition | test |") == 2
    assert "- addition, step 2: " in text
    assert "against step_0" in text
    assert "- Seed 3;" in text
    assert "torch 2" in text


def test_sampling_is_that_of_the_training(trained: RunDir, tmp_path: Path) -> None:
    export(trained, tmp_path / "out")
    saved = read_json(tmp_path / "out" / "generation_config.json") or {}
    assert (saved["temperature"], saved["top_p"], saved["top_k"], saved["do_sample"]) == (1.0, 1.0, 0, True)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert tokenizer.eos_token_id in saved["eos_token_id"]


def test_an_existing_directory_is_kept(trained: RunDir, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(ExportError, match="exists already") as refused:
        export(trained, tmp_path / "out")
    assert refused.value.code == "exists"
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    export(trained, tmp_path / "first")
    before = (tmp_path / "first" / "export.json").read_bytes()
    with pytest.raises(ExportError, match="exists already"):
        export(trained, tmp_path / "first")
    assert (tmp_path / "first" / "export.json").read_bytes() == before


@pytest.mark.parametrize("how", [*DAMAGES, "weights"])
def test_a_damaged_step_is_named(trained: RunDir, tmp_path: Path, how: str) -> None:
    run = copy_of(trained, tmp_path)
    step = run.training_state / "step_2"
    if how == "weights":
        file = step / "model" / "adapter_model.safetensors"
        file.write_bytes(file.read_bytes()[:-1] + b"x")
        message = "adapter_model.safetensors has the wrong checksum"
    else:
        message = damage(step, how)
    with pytest.raises(RunDirError, match="step_2 cannot be used") as refused:
        export(run, tmp_path / "out")
    assert message in str(refused.value)
    assert "export it with --step 1" in str(refused.value)
    assert not (tmp_path / "out").exists()


def test_an_adapter_of_a_local_base_needs_merging(trained: RunDir, tmp_path: Path) -> None:
    run = copy_of(trained, tmp_path)
    (run.root / "models" / "tiny" / ".hub.json").unlink()
    with pytest.raises(ExportError, match="--merge"):
        export(run, tmp_path / "out")
    export(run, tmp_path / "out", merge=True)
    assert "a local model" in (tmp_path / "out" / "README.md").read_text()


def test_a_failed_export_leaves_nothing(trained: RunDir, tmp_path: Path) -> None:
    """The base model lost its weights after training."""
    run = copy_of(trained, tmp_path / "copy")
    (run.root / "models" / "tiny" / "model.safetensors").unlink()
    with pytest.raises(UserError, match="cannot load the model"):
        export(run, tmp_path / "exports" / "out", merge=True)
    assert not (tmp_path / "exports").exists() or not list((tmp_path / "exports").iterdir())


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("room", [1_000, 40_000])
def test_an_export_to_a_full_disk_says_so(trained: RunDir, tmp_path: Path, merge: bool, room: int) -> None:
    """Whatever library writes: safetensors, tokenizers and transformers each have their own error."""
    with small_disk(tmp_path / "disk", 1 << 20):
        with fill(tmp_path / "disk").open("r+b") as filler:
            filler.truncate((1 << 20) - room)
        said = f"cannot write {tmp_path / 'disk' / 'out'}: disk full.*free disk space and export again"
        with pytest.raises(ExportError, match=said) as caught:
            export(trained, tmp_path / "disk" / "out", merge=merge)
        assert caught.value.code == "disk_full"
        assert os.listdir(tmp_path / "disk") == ["filler"]


def test_the_next_export_removes_what_a_kill_left(trained: RunDir, tmp_path: Path) -> None:
    to = tmp_path / "killed"

    def write() -> None:
        export(trained, to, merge=True)

    calls = disk_calls(write)
    shutil.rmtree(to)
    live = tmp_path / f".killed.{os.getpid()}-{start_ticks(os.getpid())}-{_boot()}{'0' * 8}.tmp"
    live.mkdir()
    for n in (calls.index("mkdir") + 1, len(calls) // 2, calls.index("rename")):
        killed_at(n, write)
        assert not to.exists()
        (left,) = (path for path in tmp_path.glob(".killed.*.tmp") if path != live)  # not two: it removed the last one
        assert [each.path for each in find_leftovers(tmp_path)] == [left.name]
    write()
    assert sorted(tmp_path.iterdir()) == [live, to]


def test_full_weights(make_root: Callable[[], Path], tmp_path: Path) -> None:
    root = make_root()
    run = train_here(root, write_config(root, run__total_steps=1), "full")
    assert evaluate_here(root, "full", steps="1", num_problems=8) == 0
    exported = export(run, tmp_path / "out", step="latest")
    assert {"config.json", "model.safetensors", "chat_template.jinja", "generation_config.json"} <= set(exported.files)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    (file,) = root.glob("eval_runs/full_addition/step_1_addition/completions.jsonl")
    for row in map(json.loads, file.read_text().splitlines()):
        assert answer(model, tokenizer, row["question"]) == row["completion"]
