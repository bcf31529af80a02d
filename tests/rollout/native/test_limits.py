"""Models that the backend cannot run, and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, make_policy
from grpo_train.policy.locate import PolicyError
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native import slots as slots_module
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.weights import UnsupportedModelError
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.rollout.native.models import TOKENIZER, generate, make_model, with_adapter


def test_other_models_use_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    backend = make_backend(Config(), _policy(make_model("gemma3", dtype=torch.float32)))
    assert isinstance(backend, TransformersBackend)
    assert "native cannot run this model: its attention has sliding_window" in capsys.readouterr().out
    assert isinstance(make_backend(Config(), _policy(make_model(dtype=torch.float32))), NativeBackend)


def _policy(model: Any) -> Policy:
    return make_policy(model, TOKENIZER, torch.device("cpu"), "tiny", None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"use_dora": True}, "has an adapter other than LoRA"),
        ({"lora_bias": True}, "has an adapter other than LoRA"),
        ({"target_modules": ["embed_tokens", "q_proj"]}, "has an adapter other than LoRA"),
        ({"modules_to_save": ["norm"]}, "is trained beside the adapter"),
    ],
    ids=str,
)
def test_other_adapters_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        NativeBackend(with_adapter(make_model(dtype=torch.float32), **settings), TOKENIZER)


def test_different_logits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose forward depends on more than keys and values of what came before."""
    model = make_model(dtype=torch.float32)
    forward = type(model).forward

    def shifted(self: Any, input_ids: Any, **inputs: Any) -> Any:
        found = forward(self, input_ids=input_ids, **inputs)
        found.logits = found.logits + input_ids.shape[1]
        return found

    monkeypatch.setattr(type(model), "forward", shifted)
    with pytest.raises(UnsupportedModelError, match="differ from those of transformers"):
        NativeBackend(model, TOKENIZER)


def test_slots_are_as_many_as_memory_allows(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    expected = generate(NativeBackend(model, TOKENIZER))
    backend, sizes = NativeBackend(model, TOKENIZER, memory_share=0.5), []
    slots = native.Slots

    def recorded(*settings: int) -> Any:
        sizes.append(settings)
        return slots(*settings)

    monkeypatch.setattr(native, "Slots", recorded)
    length = 64  # 39 and 24 tokens and a look, or 39 tokens, and 24 and a look
    logits = len(TOKENIZER) * 16
    keys_and_values = 2 * 2 * 2 * 16 * 8 * length
    each = keys_and_values + logits
    if layout == "shared":
        each += keys_and_values + len(TOKENIZER) * 8
    monkeypatch.setattr(native, "free_bytes", lambda device: 7 * each)
    assert generate(backend) == expected
    assert sizes == [(3, length, *((3, length) if layout == "shared" else (0, 0)), False)]
    monkeypatch.setattr(native, "free_bytes", lambda device: 1.9 * each)
    with pytest.raises(PolicyError, match=r"rollout.memory_share 0.5 leaves .* lower rollout.max_completion_length"):
        generate(backend)


def test_shared_prompts_leave_room_for_more_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """13 prompts of 37 completions."""
    backend, sizes = NativeBackend(make_model(), TOKENIZER, memory_share=1), []
    slots = native.Slots
    monkeypatch.setattr(native, "Slots", lambda *settings: (sizes.append(settings), slots(*settings))[1])
    keys_and_values, logits = 2 * 2 * 2 * 16 * 8 * 64, len(TOKENIZER)
    own, entry = keys_and_values + 16 * logits, keys_and_values + 8 * logits
    monkeypatch.setattr(native, "free_bytes", lambda device: 13 * entry + 20 * own)
    generate(backend)
    assert sizes == [(20, 64, 13, 64, False)]


def test_sharing_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As if this device's kernel returned other sums."""
    model = make_model()
    expected = generate(NativeBackend(model, TOKENIZER))
    original = slots_module.attention_and_sums
    monkeypatch.setattr(slots_module, "attention_and_sums", lambda *inputs: (original(*inputs)[0],) * 2)
    backend = NativeBackend(model, TOKENIZER)
    assert generate(backend) == expected
    assert "rollouts keep a copy of the prompt for each completion: " in capsys.readouterr().out


@pytest.mark.parametrize("kind", [NativeBackend, TransformersBackend])
def test_fewer_at_once_when_memory_runs_out(
    kind: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = make_model()
    expected = generate(kind(model, TOKENIZER))
    flow, sizes = kind._flow, []

    def failing(self: Any, prompts: Any, seeds: Any, indices: Any, size: int, *settings: Any) -> Any:
        sizes.append(size)
        for number, each in enumerate(flow(self, prompts, seeds, indices, size, *settings)):
            if size > 5 and number == 4:
                raise torch.OutOfMemoryError("CUDA out of memory")
            yield each

    monkeypatch.setattr(kind, "_flow", failing)
    assert generate(kind(model, TOKENIZER), batch_size=9) == expected
    assert sizes == [9, 5]
    assert "continuing with 5 completions at once" in capsys.readouterr().out
