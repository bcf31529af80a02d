"""What the ``auto`` keys become on V100, T4, A100, H100, H200, an instance of one (MIG), and without a GPU.

``data/`` holds what ``grpo-train platform --json`` prints there, written from the vendor's data sheets and from NVML's
names and sizes; it was not recorded on these machines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_train.config import dump_config, load_config
from grpo_train.config.schema import Config
from grpo_train.platforms.choices import Choice, resolve
from grpo_train.platforms.facts import Platform
from grpo_train.platforms.memory import QWEN2_5, Shape, training_bytes
from grpo_train.policy.locate import PolicyError
from tests.support.engine import config_text

MACHINES = sorted(path.stem for path in (Path(__file__).parent / "data").glob("*.json"))
AUTO = "model: {backbone: auto}\ntrain: {microbatch_size: auto, tf_micro_batch: auto}\n"


def machine(name: str) -> Platform:
    return Platform.from_json(json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text()))


def resolved(name: str, text: str = AUTO) -> tuple[Config, dict[str, Choice]]:
    config, choices = resolve(load_config(text), machine(name), Path("/nowhere"))
    return config, {choice.key: choice for choice in choices}


@pytest.mark.parametrize("name", MACHINES)
def test_facts_survive_json(name: str) -> None:
    found = machine(name)
    assert Platform.from_json(json.loads(json.dumps(found.to_json()))) == found


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("v100", "float16"), ("t4", "float16"), ("a100", "bfloat16"), ("h100", "bfloat16"), ("h200", "bfloat16"),
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
        needed = training_bytes(shape, config, config.model.dtype, config.microbatch_size, memory)
        assert needed < 0.85 * memory
        assert config.rollout.buffer_size % config.microbatch_size == 0
        assert "GiB" in choices["train.microbatch_size"].reason


def test_the_values_are_written_and_kept_elsewhere() -> None:
    """A resume on another machine reads config.yaml, where nothing is ``auto`` any more."""
    config, _ = resolved("h200")
    written = load_config(dump_config(config))
    assert resolve(written, machine("v100"), Path("/nowhere")) == (config, [])


def test_nothing_fits() -> None:
    with pytest.raises(PolicyError, match=r"model\.backbone: auto finds no model that fits") as error:
        resolved("mig", AUTO + "rollout: {max_completion_length: 32768}\n")
    assert error.value.code == "no_memory"


def test_the_smallest_gpu_decides() -> None:
    found = machine("h200").to_json()
    found["gpus"] = [*found["gpus"], *machine("t4").to_json()["gpus"]]
    config, _ = resolve(load_config("{}"), Platform.from_json(found), Path("/nowhere"))
    assert config.model.dtype == "float16"


def test_an_unknown_model_needs_its_shape(tmp_path: Path) -> None:
    text = config_text(model__backbone="acme/large", train__microbatch_size="auto")
    with pytest.raises(PolicyError, match="needs the shape of acme/large"):
        resolve(load_config(text), machine("h100"), tmp_path)


def test_a_local_model_is_read(tiny_model: Path, tmp_path: Path) -> None:
    text = config_text(model__backbone=str(tiny_model), train__microbatch_size="auto")
    config, _ = resolve(load_config(text), machine("h100"), tmp_path)
    assert config.microbatch_size == config.rollout.buffer_size, "everything fits"


def test_the_tiny_model_has_its_size(tiny_model: Path) -> None:
    from safetensors.numpy import load_file

    weights = load_file(tiny_model / "model.safetensors")
    matrices = sum(tensor.size for tensor in weights.values() if tensor.ndim == 2)
    assert Shape.read(tiny_model / "config.json").parameters == matrices


@pytest.mark.parametrize(("name", "billions"), [("qwen2_5_05", 0.494), ("qwen2_5_15", 1.544), ("qwen2_5_3", 3.086)])
def test_known_models_have_their_published_size(name: str, billions: float) -> None:
    assert QWEN2_5[name].parameters / 1e9 == pytest.approx(billions, rel=0.005)


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
    assert needed(prompts=prompts + 1) >= base
    assert needed(tokens=tokens + 64) > base
    assert needed(generations=generations + 1) > base
