"""Compiled layers generate the same completions; what cannot be compiled is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from grpo_train.config.schema import Config
from grpo_train.policy.loading import make_policy
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.tiny.architectures import Architecture
from grpo_train.train.health import health
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, greedy_by_transformers, make_model


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Traces like the product's compiler, and needs no C++ compiler."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(native, "COMPILER", counter)
    return counter


@pytest.mark.parametrize("architecture", ["qwen3"])
def test_greedy_equals_generate(architecture: Architecture, compiler: Any) -> None:
    """tests/soak has the other architectures."""
    model = make_model(architecture, lora=True, dtype=torch.float32)
    backend = NativeBackend(model, TOKENIZER, compile_layers=True)
    assert compiler.frame_count
    assert not backend.fallbacks
    found = generate(backend, temperature=0.0, batch_size=5)
    expected = {tuple(prompt): greedy_by_transformers(model, list(prompt)) for prompt in set(map(tuple, PROMPTS))}
    assert [one.ids for one in found] == [expected[tuple(prompt)] for prompt in PROMPTS]


def test_all_layers_and_numbers_of_rows_share_the_code(compiler: Any) -> None:
    """The pieces around attention, for the first number of rows, for any, and for one."""
    backend = NativeBackend(make_model(), TOKENIZER, compile_layers=True)
    pieces = compiler.frame_count
    plain = generate(NativeBackend(make_model(), TOKENIZER))
    for size in (0, 5, 7, 36):
        assert generate(backend, batch_size=size) == plain
    assert compiler.frame_count <= 3 * pieces


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*inputs: Any) -> Any:
        raise RuntimeError("no C++ compiler found\nmore")

    torch.compiler.reset()
    monkeypatch.setattr(native, "COMPILER", fail)
    model = make_model(dtype=torch.float32)
    config = Config.model_validate({"rollout": {"compile": "on"}, "model": {"dtype": "float32"}})
    backend = make_backend(config, make_policy(model, TOKENIZER, torch.device("cpu"), "tiny", None))
    assert generate(backend) == generate(NativeBackend(model, TOKENIZER))
    (message,) = backend.fallbacks.values()
    assert message.startswith("rollouts without compiled layers, which are slower: ")
    assert capsys.readouterr().out == message + "\n"
    assert health({}, config, fallbacks=backend.fallbacks)[-1]["message"] == message
