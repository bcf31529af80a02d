"""Completions are those of the model: greedy ones of generate, sampled ones of the transformers backend."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch

from grpo_train.policy.loading import Policy
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.logprobs import LogprobForward, pad_values
from grpo_train.rollout import Completion
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tiny.architectures import Architecture, random_model
from tests.rollout.native.models import (
    BUDGET,
    PROMPTS,
    TOKENIZER,
    generate,
    greedy_by_transformers,
    make_model,
    with_adapter,
)


@cache
def expected_greedy(architecture: Architecture, lora: bool) -> dict[tuple[int, ...], tuple[int, ...]]:
    """Each prompt's completion, the same for both layouts."""
    model = make_model(architecture, lora=lora, dtype=torch.float32)
    return {tuple(prompt): greedy_by_transformers(model, prompt) for prompt in PROMPTS[::3]}


@pytest.mark.usefixtures("layout")
@pytest.mark.parametrize("lora", [False, True], ids=["base", "lora"])
@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
def test_greedy_equals_generate(architecture: Architecture, lora: bool) -> None:
    """One prompt at a time, and all in 5 slots, each of which several prompts use."""
    backend = NativeBackend(make_model(architecture, lora=lora, dtype=torch.float32), TOKENIZER)
    expected = expected_greedy(architecture, lora)
    for prompt in expected:
        assert [one.ids for one in generate(backend, [prompt], temperature=0.0)] == [expected[prompt]]
    found = generate(backend, temperature=0.0, batch_size=5)
    assert [one.ids for one in found] == [expected[tuple(prompt)] for prompt in PROMPTS]
    assert not any(one.logps for one in found)


@pytest.mark.parametrize("settings", [{}, {"temperature": 1.5}, {"top_p": 0.9}, {"top_k": 5}], ids=str)
@pytest.mark.parametrize("stop", [(), ("e", "th")], ids=str)
def test_samples_equal_those_of_transformers(settings: dict[str, Any], stop: tuple[str, ...]) -> None:
    """Prompts are shared, except for one completion at a time."""
    model = make_model("qwen3", lora=True)
    expected = generate(TransformersBackend(model, TOKENIZER, stop), **settings)
    assert len({len(one.ids) for one in expected}) > 4, "rows must leave at different times"
    for size, every, count in ((0, 1, 37), (5, 8, 37), (7, 3, 37), (1, 2, 7), (36, 5, 37)):
        backend = NativeBackend(model, TOKENIZER, stop, look_every=every)
        found = generate(backend, PROMPTS[:count], batch_size=size, **settings)
        assert [(one.ids, one.finished) for one in found] == [(one.ids, one.finished) for one in expected[:count]]
        for one, other in zip(found, expected[:count], strict=True):
            assert one.logps == pytest.approx(other.logps, abs=1e-6)


@pytest.mark.usefixtures("layout")
def test_order_and_neighbors_change_nothing() -> None:
    backend = NativeBackend(make_model(lora=True), TOKENIZER)
    together = generate(backend, batch_size=8)
    backwards = generate(backend, PROMPTS[::-1], seeds=range(36, -1, -1), batch_size=6)
    alone = [generate(backend, [prompt], seeds=[seed])[0] for seed, prompt in enumerate(PROMPTS[:6])]
    assert backwards[::-1] == together
    assert alone == together[:6]


MANY = PROMPTS[:36] * 8


@cache
def many_by_transformers() -> list[Completion]:
    return generate(TransformersBackend(make_model("qwen3", lora=True, dtype=torch.float32), TOKENIZER), MANY)


@pytest.mark.usefixtures("layout")
def test_float32_differs_at_boundaries_only() -> None:
    """Both backends draw from the same uniform numbers; a first difference has one within 1e-6 of a boundary."""
    model, prompts, theirs = make_model("qwen3", lora=True, dtype=torch.float32), MANY, many_by_transformers()
    mine = generate(NativeBackend(model, TOKENIZER), prompts)
    tokens = sum(len(one.ids) for one in theirs)
    different = [seed for seed, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a.ids != b.ids]
    assert len(different) <= math.ceil(tokens / 10_000)
    for seed in different:
        pairs = enumerate(zip(mine[seed].ids, theirs[seed].ids, strict=False))
        first = next(position for position, (a, b) in pairs if a != b)
        ids = torch.tensor([[*prompts[seed], *mine[seed].ids[:first]]])
        with torch.no_grad():
            cumulative = model(ids).logits[0, -1].double().softmax(0).cumsum(0)
        uniform = torch.rand(BUDGET, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))[first]
        boundary = min(mine[seed].ids[first], theirs[seed].ids[first])
        assert abs(float(cumulative[boundary] - uniform)) < 1e-6


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_the_trainers(architecture: Architecture, temperature: float) -> None:
    model = make_model(architecture, lora=True, dtype=torch.float32)
    found = generate(NativeBackend(model, TOKENIZER), temperature=temperature, batch_size=6)
    tokens = LogprobForward(Policy(model, TOKENIZER, torch.device("cpu"), ""), temperature=temperature)(found)
    sampled = pad_values([one.logps for one in found], tokens.logps.shape[1])
    torch.testing.assert_close(tokens.logps.detach(), sampled, atol=1e-5, rtol=0)


def test_bfloat16_mismatch(capsys: pytest.CaptureFixture[str]) -> None:
    """The copy is rounded once; the trainer computes with the adapter beside the rounded base."""
    model = with_adapter(random_model("qwen3", TOKENIZER).to(torch.bfloat16).eval(), init_lora_weights=True)
    found = generate(NativeBackend(model, TOKENIZER), PROMPTS * 4)
    policy = Policy(model, TOKENIZER, torch.device("cpu"), "", torch.bfloat16)
    tokens = LogprobForward(policy, temperature=1.0)(found)
    sampled = pad_values([one.logps for one in found], tokens.logps.shape[1])
    ratio = (tokens.logps - sampled)[tokens.mask.bool()].double()
    kl = float((ratio.exp() - 1 - ratio).mean())
    with capsys.disabled():
        print(f"\nmismatch KL in bfloat16: {kl:.1e}")
    assert kl < 0.02


def test_tokens_are_reported_in_order_up_to_the_end() -> None:
    seen: dict[int, list[int]] = {}

    def on_token(index: int, position: int, token: int) -> None:
        assert position == len(seen.setdefault(index, []))
        seen[index].append(token)

    done: list[int] = []
    backend = NativeBackend(make_model(), TOKENIZER, look_every=8)
    found = generate(backend, batch_size=5, on_token=on_token, on_done=lambda index, one: done.append(index))
    assert [seen[index] for index in range(37)] == [list(one.ids) for one in found]
    assert sorted(done) == list(range(37))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_is_an_error(temperature: float) -> None:
    model = make_model(dtype=torch.float32)
    backend = NativeBackend(model, TOKENIZER)
    model.model.norm.weight.data.fill_(math.nan)
    backend.sync()
    with pytest.raises(PolicyError, match="logits contain NaN or Inf"):
        generate(backend, temperature=temperature)
