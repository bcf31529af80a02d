"""What the ``auto`` keys become on V100s, T4, A100, H100, H200, an instance of one (MIG), and without a GPU.

``data/`` holds what ``grpo-train platform --json`` prints there, written from the vendor's data sheets and from NVML's
names and sizes; it was not recorded on these machines.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import dump_config, load_config
from grpo_train.config.schema import Config
from grpo_train.platforms.choices import Choice, find_shape, resolve_auto
from grpo_train.platforms.facts import Platform
from grpo_train.platforms.memory import QWEN2_5, Shape, activation_bytes_per_token, least_bytes, training_bytes
from grpo_train.policy.loading import load_policy
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.logprobs import LogprobForward
from grpo_train.rollout import Completion
from tests.support.engine import config_text

MACHINES = sorted(path.stem for path in (Path(__file__).parent / "data").glob("*.json"))
AUTO = "model: {backbone: auto}\ntrain: {microbatch_size: auto, tf_micro_batch: auto}\n"


def machine(name: str) -> Platform:
    return Platform.from_json(json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text()))


def resolved(name: str, text: str = AUTO) -> tuple[Config, dict[str, Choice]]:
    config, choices = resolve_auto(load_config(text), machine(name), Path("/nowhere"))
    return config, {choice.key: choice for choice in choices}


@pytest.mark.parametrize("name", MACHINES)
def test_facts_survive_json(name: str) -> None:
    found = machine(name)
    assert Platform.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("v100", "float16"), ("v100_32gb", "float16"),
        ("t4", "float16"), ("a100", "bfloat16"), ("h100", "bfloat16"), ("h200", "bfloat16"),
        ("mig", "bfloat16"), ("no_gpu", "float32"),
    ],
)  # fmt: skip
def test_the_type_follows_the_hardware(name: str, dtype: str) -> None:
    assert resolved(name, "{}")[0].model.dtype == dtype


def test_a_cpu_was_asked_for() -> None:
    assert resolved("h100", "model: {device: cpu}")[0].model.dtype == "float32"


def test_what_is_set_stays() -> None:
    text = "model: {dtype: float32, backbone: qwen2_5_05}\ntrain: {microbatch_size: 4, tf_micro_batch: 8}\n"
    config, choices = resolved("h200", text)
    assert not choices
    assert config == load_config(text)


def test_more_memory_holds_a_larger_model() -> None:
    sizes = list(QWEN2_5)
    short = "rollout: {max_prompt_length: 128, max_completion_length: 128, generation_batch_size: 32}\n"
    chosen = [resolved(name, AUTO + short)[0].model.backbone for name in ("mig", "v100", "a100", "h200")]
    assert sorted(chosen, key=sizes.index) == chosen
    assert (chosen[0], chosen[-1]) == ("qwen2_5_05", "qwen2_5_3")


def test_what_is_chosen_fits_and_divides() -> None:
    for name in ("a100", "h100", "h200"):
        config, choices = resolved(name)
        memory = (machine(name).gpus[0].memory_mib or 0) * 2**20
        shape = QWEN2_5[config.model.backbone]
        needed = least_bytes(shape, config, config.model.dtype, memory)
        assert needed < 0.85 * memory
        assert config.rollout.buffer_size % config.microbatch_size == 0
        assert "GiB" in choices["train.microbatch_size"].reason


@pytest.mark.parametrize("name", ["t4", "v100", "v100_32gb"])
@pytest.mark.parametrize("recomputed", ["true", "false"])
def test_older_gpus_train_what_they_hold(name: str, recomputed: str) -> None:
    """Neither all rollouts nor all completions of a prompt are in memory at once: both are split until they fit."""
    config, choices = resolved(name, AUTO.replace("tf_", f"gradient_checkpointing: {recomputed}, tf_"))
    assert (config.model.backbone, config.model.adapter) == (
        "qwen2_5_3" if name == "v100_32gb" else "qwen2_5_15", "lora",
    )  # fmt: skip
    assert config.microbatch_size == 1 if recomputed == "false" else config.microbatch_size > 1
    assert ("are split" in choices["train.microbatch_size"].reason) == (recomputed == "false")


@pytest.mark.parametrize("budget", ["0", "8192"])
def test_passes_of_a_fixed_length_are_not_split_further(budget: str) -> None:
    with pytest.raises(PolicyError, match="finds no model that fits"):
        resolved("v100", AUTO.replace("tf_", f"token_budget: {budget}, tf_"))
    assert resolved("v100", AUTO.replace("tf_", "token_budget: 1024, tf_"))[0].model.backbone == "qwen2_5_15"


@pytest.mark.parametrize(
    ("name", "problems"), [("v100", 256), ("t4", 256), ("no_gpu", 256), ("a100", None), ("h200", None), ("mig", None)]
)
def test_slow_machines_evaluate_on_fewer_problems(name: str, problems: int | None) -> None:
    config, choices = resolved(name, "eval: {num_problems: auto}")
    assert config.eval_problems == problems
    assert "eval.num_problems" in choices
    assert load_config(dump_config(config)).eval_problems == problems
    assert resolved(name, "{}")[0].eval_problems is None, "asked for only"


def test_the_values_are_written_and_kept_elsewhere() -> None:
    """A resume on another machine reads config.yaml, where nothing is ``auto`` any more."""
    config, _ = resolved("h200")
    written = load_config(dump_config(config))
    assert resolve_auto(written, machine("v100"), Path("/nowhere")) == (config, [])


def test_nothing_fits() -> None:
    with pytest.raises(PolicyError, match=r"model\.backbone: auto finds no model that fits") as error:
        resolved("mig", AUTO + "rollout: {max_completion_length: 32768}\n")
    assert error.value.code == "no_memory"


def test_the_smallest_gpu_decides() -> None:
    found = machine("h200").to_json()
    found["gpus"] = [*found["gpus"], *machine("t4").to_json()["gpus"]]
    config, _ = resolve_auto(load_config("{}"), Platform.from_json(found), Path("/nowhere"))
    assert config.model.dtype == "float16"


def test_an_unknown_model_needs_its_shape(tmp_path: Path) -> None:
    text = config_text(model__backbone="acme/large", train__microbatch_size="auto")
    with pytest.raises(PolicyError, match="auto: the shape of acme/large is unknown"):
        resolve_auto(load_config(text), machine("h100"), tmp_path)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ("{", "config.json: invalid JSON"),
        ('{"hidden_size": 8}', "config.json has no 'num_attention_heads'"),
        ('{"num_attention_heads": "x"}', "invalid literal"),
        ('{"num_attention_heads": null}', "NoneType"),
    ],
)
def test_a_damaged_config_has_no_shape(tiny_model: Path, tmp_path: Path, config: str, problem: str) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model, model)
    (model / "config.json").write_text(config)
    with pytest.raises(PolicyError, match=f"the shape of {model} is unknown: .*{problem}"):
        find_shape(str(model), tmp_path)


def test_a_local_model_is_read(tiny_model: Path, tmp_path: Path) -> None:
    text = config_text(model__backbone=str(tiny_model), train__microbatch_size="auto")
    config, _ = resolve_auto(load_config(text), machine("h100"), tmp_path)
    assert config.microbatch_size == config.rollout.buffer_size, "everything fits"


def test_the_tiny_model_has_its_size(tiny_model: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(tiny_model / "model.safetensors")
    matrices = sum(tensor.size for tensor in weights.values() if tensor.ndim == 2)
    assert Shape.read(tiny_model / "config.json").parameters == matrices


@pytest.mark.parametrize(("name", "billions"), [("qwen2_5_05", 0.494), ("qwen2_5_15", 1.544), ("qwen2_5_3", 3.086)])
def test_known_models_have_their_published_size(name: str, billions: float) -> None:
    assert QWEN2_5[name].parameters / 1e9 == pytest.approx(billions, rel=0.005)


@pytest.mark.parametrize("adapter", ["lora", "none"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_activations_are_those_that_autograd_keeps(make_root: Callable[[], Path], adapter: str, dtype: str) -> None:
    """Of one more token; the state that a pass keeps in any case (weights in 16 bits) is not counted."""
    root = make_root()
    config = load_config(config_text(model__adapter=adapter, model__dtype=dtype, model__device="cpu"))
    policy = load_policy(config.model, root, torch.device("cpu"))
    forward = LogprobForward(policy, temperature=1.0, packing=False, chunked=True)

    def kept(tokens: int) -> int:
        storages: dict[int, torch.UntypedStorage] = {}

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
            return tensor

        half = (5,) * (tokens // 2)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            forward([Completion(half, half, (-1.0,) * len(half), finished=False)])
        return sum(storage.nbytes() for storage in storages.values())

    shape = Shape.read(root / "models" / "tiny" / "config.json")
    per_token = (kept(128) - kept(64)) / 64
    assert 0.85 < activation_bytes_per_token(shape, config, dtype) / per_token < 1.4


@given(
    prompts=st.integers(1, 64), tokens=st.integers(16, 4096), generations=st.integers(2, 16),
    adapter=st.sampled_from(["lora", "none"]), dtype=st.sampled_from(["float32", "bfloat16", "float16"]),
)  # fmt: skip
def test_more_work_takes_more_memory(prompts: int, tokens: int, generations: int, adapter: str, dtype: str) -> None:
    def needed(**changes: Any) -> float:
        values = {"prompts": prompts, "tokens": tokens, "generations": generations, **changes}
        text = (
            f"model: {{adapter: {adapter}}}\nrollout: {{max_completion_length: {values['tokens']}, "
            f"num_generations: {values['generations']}}}\n"
        )
        return training_bytes(QWEN2_5["qwen2_5_15"], load_config(text), dtype, values["prompts"], 80e9)

    base = needed()
    assert base > 0
    least = least_bytes(QWEN2_5["qwen2_5_15"], load_config("{}"), dtype, 80e9)
    assert 0 < least <= training_bytes(QWEN2_5["qwen2_5_15"], load_config("{}"), dtype, prompts, 80e9)
    assert needed(prompts=prompts + 1) >= base
    assert needed(tokens=tokens + 64) > base
    assert needed(generations=generations + 1) > base
