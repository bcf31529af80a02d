"""FlashAttention generates the same completions. A function on the CPU does what torch documents of its kernel."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from grpo_train.rollout.native import backend as native
from grpo_train.rollout.native import flash
from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.slots import ATTENTION_INSIDE
from grpo_train.rollout.native.trial import CopyTrials
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, make_model
from tests.rollout.native.test_graphs import Recorder


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Tensor,
    cum_seq_k: Tensor,
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: float | None = None,
    seqused_k: Tensor,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    assert {each.dtype for each in (cum_seq_q, cum_seq_k, seqused_k)} == {torch.int32}
    assert key.is_contiguous()
    assert (dropout_p, is_causal, return_debug_mask) == (0, False, False)
    count = len(seqused_k)
    assert len(cum_seq_q) == len(cum_seq_k) == count + 1
    # All sequences have as many queries here.
    assert torch.equal(cum_seq_q, torch.arange(count + 1, dtype=torch.int32) * max_q)
    repeats = query.shape[1] // key.shape[1]
    at = cum_seq_k[:-1].unsqueeze(1) + torch.arange(max_k)
    keys, values = (x[at].repeat_interleave(repeats, dim=2) for x in (key, value))
    scores = torch.einsum("nqhd,nkhd->nqhk", query.unflatten(0, (count, max_q)), keys)
    hidden = torch.arange(max_k) >= seqused_k[:, None, None, None]
    scores = (scores * (scale or query.shape[-1] ** -0.5)).masked_fill(hidden, -torch.inf)
    found = torch.einsum("nqhk,nkhd->nqhd", scores.softmax(-1), values)
    return found.flatten(0, 1), scores.logsumexp(-1).flatten(0, 1).transpose(0, 1)


@torch.library.custom_op("grpo_test::flash", mutates_args=())
def operator(
    query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor, cum_seq_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, return_debug_mask: bool, scale: float | None = None,
    seqused_k: Tensor | None = None, num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """:func:`documented` for compilers."""
    assert seqused_k is not None
    inputs = (query, key, value, cum_seq_q, cum_seq_k, max_q, max_k, dropout_p, is_causal, return_debug_mask)
    found, sums = documented(*inputs, scale=scale, seqused_k=seqused_k)
    return found.contiguous(), sums.contiguous()


@operator.register_fake
def _(query: Tensor, *inputs: Any, **options: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(query), query.new_empty(query.shape[1], query.shape[0])


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, layout: str) -> NativeBackend:
    monkeypatch.setattr(flash, "kernel", documented)
    made = NativeBackend(make_model("qwen3", lora=True), TOKENIZER, look_every=4)
    made._is_flash = made._try_flash(CopyTrials(made._copy))
    assert made._is_flash
    return made


def test_completions_are_the_same(backend: NativeBackend) -> None:
    plain = NativeBackend(make_model("qwen3", lora=True), TOKENIZER)
    for size in (0, 5):
        assert generate(backend, batch_size=size) == generate(plain)


def test_attention_is_compiled_with_its_layer(monkeypatch: pytest.MonkeyPatch, layout: str) -> None:
    """One code for all layers."""
    torch.compiler.reset()
    counter = CompileCounterWithBackend("aot_eager")
    monkeypatch.setattr(native, "COMPILER", counter)
    monkeypatch.setattr(flash, "kernel", operator)
    made = NativeBackend(make_model("qwen3", lora=True), TOKENIZER)
    trial = CopyTrials(made._copy)
    trial.run(is_shared=False)
    made._is_flash = made._try_flash(trial)
    made._compile(trial)
    assert not made.fallbacks
    assert made._copy._attention == ATTENTION_INSIDE
    assert counter.frame_count == 1
    assert generate(made, batch_size=5) == generate(NativeBackend(make_model("qwen3", lora=True), TOKENIZER))
    made._copy.leave_compiled()
    assert generate(made, PROMPTS[:4]) == generate(
        NativeBackend(make_model("qwen3", lora=True), TOKENIZER), PROMPTS[:4]
    )


def test_recorded_steps_have_one_width(backend: NativeBackend) -> None:
    recorder = Recorder()
    expected = generate(backend, PROMPTS[:12], batch_size=7)
    backend._record_with(recorder)
    assert backend._recorder is recorder
    recorder.shapes = 0
    assert generate(backend, PROMPTS[:12], batch_size=7) == expected
    assert recorder.shapes <= 4, "7, 4, 2 and 1 rows"


def test_a_kernel_that_differs_is_not_used(monkeypatch: pytest.MonkeyPatch, backend: NativeBackend) -> None:
    def wrong(*inputs: Any, seqused_k: Tensor, **options: Any) -> Any:
        return documented(*inputs, seqused_k=seqused_k.clamp(max=5), **options)

    monkeypatch.setattr(flash, "kernel", wrong)
    assert not backend._try_flash(CopyTrials(backend._copy))
    assert backend.fallbacks["flash"].startswith("rollouts without FlashAttention")
    backend._is_flash = False
    assert generate(backend, PROMPTS[:4])


def test_a_torch_without_the_kernel(monkeypatch: pytest.MonkeyPatch, backend: NativeBackend) -> None:
    monkeypatch.setattr(flash, "PARAMETERS", frozenset({"query", "key", "value"}))
    assert not backend._try_flash(CopyTrials(backend._copy))
    assert "FlashAttention of this torch has no seqused_k" in backend.fallbacks["flash"]
