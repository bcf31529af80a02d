"""The weights are those of the last sync; the base is only read."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.weights import FrozenCopy
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tiny.architectures import Architecture
from tests.rollout.native.models import TOKENIZER, generate, make_model, with_adapter


def change(model: Any) -> None:
    with torch.no_grad():
        for weight in model.parameters():
            if weight.requires_grad:
                weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(7))


@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "lora"])
def test_completions_are_of_the_last_sync(lora: bool) -> None:
    model = make_model(lora=lora)
    backend, reference = NativeBackend(model, TOKENIZER), TransformersBackend(model, TOKENIZER)
    before = generate(backend)
    change(model)
    assert generate(backend) == before
    backend.sync()
    after = generate(backend)
    assert [one.ids for one in after] == [one.ids for one in generate(reference)]
    assert after != before


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("lora", [False, True], ids=["all weights", "lora"])
def test_layers_of_one_input_are_computed_together(
    architecture: Architecture, lora: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_model(architecture, lora=lora)
    plain = NativeBackend(model, TOKENIZER)
    monkeypatch.setattr(native, "FrozenCopy", lambda model, dtype, is_fused: FrozenCopy(model, dtype, is_fused=True))
    backend = NativeBackend(model, TOKENIZER)
    kinds = Counter(type(module).__name__ for module in backend._model.modules())
    assert kinds["First"] == 2 * model.config.num_hidden_layers
    assert kinds["Other"] == 3 * model.config.num_hidden_layers
    addresses = {name: weight.data_ptr() for name, weight in backend._model.named_parameters()}
    assert generate(backend) == generate(plain)
    change(model)
    for each in (backend, plain):
        each.sync()
    for name, weight in plain._model.named_parameters():
        assert torch.equal(backend._model.get_parameter(name), weight)
    assert generate(backend) == generate(plain)
    assert {name: weight.data_ptr() for name, weight in backend._model.named_parameters()} == addresses


def test_shared_weights_are_not_copied_to_be_computed_together() -> None:
    model = with_adapter(make_model().requires_grad_(False), target_modules=["q_proj"])
    copy = FrozenCopy(model, is_fused=True)
    kinds = Counter(type(module).__name__ for module in copy.model.modules())
    assert kinds["First"] == 0
    assert copy.model.get_parameter("model.layers.0.mlp.up_proj.weight").data_ptr() in {
        weight.data_ptr() for weight in model.parameters()
    }


def test_sync_reads_a_switched_off_adapter() -> None:
    """As for an opponent or a reference, whose weights take the policy's place for a while."""
    model = make_model(lora=True)
    backend = NativeBackend(model, TOKENIZER)
    with model.disable_adapter():
        backend.sync()
        expected = generate(TransformersBackend(model, TOKENIZER))
    assert [one.ids for one in generate(backend)] == [one.ids for one in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_thousand_syncs_leave_the_base_as_it_was(dtype: torch.dtype) -> None:
    model = make_model(lora=True, dtype=dtype)
    base = {name: weight.clone() for name, weight in model.named_parameters() if "lora_" not in name}
    backend = NativeBackend(model, TOKENIZER)
    addresses = {name: weight.data_ptr() for name, weight in backend._model.named_parameters()}
    for _ in range(1000):
        backend.sync()
    for name, weight in base.items():
        assert torch.equal(weight, model.get_parameter(name)), name
    layer = model.get_submodule("base_model.model.model.layers.0.mlp.up_proj")
    delta = layer.lora_B["default"].weight.float() @ layer.lora_A["default"].weight.float() * layer.scaling["default"]
    merged = (layer.base_layer.weight.float() + delta).to(dtype)
    assert torch.equal(backend._model.get_parameter("model.layers.0.mlp.up_proj.weight"), merged)
    assert {name: weight.data_ptr() for name, weight in backend._model.named_parameters()} == addresses


def test_weights_that_are_not_trained_are_shared() -> None:
    model = make_model(lora=True)
    copy, base = NativeBackend(model, TOKENIZER)._model, model.get_base_model()
    assert copy.get_input_embeddings().weight.data_ptr() == base.get_input_embeddings().weight.data_ptr()
    whole = make_model()
    full = NativeBackend(whole, TOKENIZER)._model
    assert not {w.data_ptr() for w in full.parameters()} & {w.data_ptr() for w in whole.parameters()}
    assert full.lm_head.weight.data_ptr() == full.model.embed_tokens.weight.data_ptr(), "tied"
    frozen = make_model().requires_grad_(False)
    assert NativeBackend(frozen, TOKENIZER)._copy._own == []


def test_making_a_backend_draws_no_random_numbers() -> None:
    model = make_model(lora=True)
    before = torch.get_rng_state()
    generate(NativeBackend(model, TOKENIZER))
    assert torch.equal(torch.get_rng_state(), before)
