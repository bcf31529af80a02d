"""Models that the backend cannot run, and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from grpo_train.config.schema import Config
from grpo_train.policy.locate import PolicyError
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.weights import UnsupportedModelError
from grpo_train.rollout.transformers_backend import TransformersBackend
from tests.rollout.native.models import TOKENIZER, generate, make_model, with_adapter


def test_other_models_use_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    backend = make_backend(Config(), make_model("gemma3", dtype=torch.float32), TOKENIZER)
    assert isinstance(backend, TransformersBackend)
    assert "native cannot run this model: its attention has sliding_window" in capsys.readouterr().out
    assert isinstance(make_backend(Config(), make_model(dtype=torch.float32), TOKENIZER), NativeBackend)


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


def test_slots_are_as_many_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model()
    expected = generate(NativeBackend(model, TOKENIZER))
    backend, sizes = NativeBackend(model, TOKENIZER, memory_share=0.5), []
    slots = native.Slots

    def recorded(count: int, length: int) -> Any:
        sizes.append((count, length))
        return slots(count, length)

    monkeypatch.setattr(native, "Slots", recorded)
    length = 64  # 39 and 24 tokens and a look
    each = 2 * 2 * 2 * 32 * 8 * length + len(TOKENIZER) * 16
    monkeypatch.setattr(native, "free_bytes", lambda device: 7 * each)
    assert generate(backend) == expected
    assert sizes == [(3, length)]
    monkeypatch.setattr(native, "free_bytes", lambda device: 1.9 * each)
    with pytest.raises(PolicyError, match=r"rollout.memory_share 0.5 leaves .* lower rollout.max_completion_length"):
        generate(backend)


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
