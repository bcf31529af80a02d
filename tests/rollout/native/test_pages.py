"""Attention by pages generates the same completions. A function on the CPU does what torch documents of its kernel."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen

from grpo_train.rollout.native.backend import NativeBackend
from grpo_train.rollout.native.pages import PAGE
from grpo_train.rollout.native.trial import Trial
from tests.rollout.native.models import PROMPTS, TOKENIZER, generate, make_model
from tests.rollout.native.test_graphs import Recorder


def documented(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: varlen.AuxRequest | None = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
    seqused_k: Tensor,
    block_table: Tensor,
    num_splits: int | None = None,
) -> tuple[Tensor, Tensor]:
    assert {each.dtype for each in (cu_seq_q, cu_seq_k, seqused_k, block_table)} == {torch.int32}
    assert key.is_contiguous()
    assert (key.shape[1], max_k) == (PAGE, block_table.shape[1] * PAGE)
    count = len(seqused_k)
    # All sequences have as many queries here.
    assert torch.equal(cu_seq_q, torch.arange(count + 1, dtype=torch.int32) * max_q)
    repeats = query.shape[1] // key.shape[2]
    keys, values = (x[block_table.long()].flatten(1, 2).repeat_interleave(repeats, dim=2) for x in (key, value))
    scores = torch.einsum("nqhd,nkhd->nqhk", query.unflatten(0, (count, max_q)), keys)
    hidden = torch.arange(max_k) >= seqused_k[:, None, None, None]
    scores = (scores * (scale or query.shape[-1] ** -0.5)).masked_fill(hidden, -torch.inf)
    found = torch.einsum("nqhk,nkhd->nqhd", scores.softmax(-1), values)
    return found.flatten(0, 1), scores.logsumexp(-1).flatten(0, 1).transpose(0, 1)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch, layout: str) -> NativeBackend:
    monkeypatch.setattr(varlen, "varlen_attn", documented)
    made = NativeBackend(make_model("qwen3", lora=True), TOKENIZER, look_every=4)
    made._is_paged = made._try_pages(Trial(made._copy))
    assert made._is_paged
    return made


def test_completions_are_the_same(backend: NativeBackend) -> None:
    plain = NativeBackend(make_model("qwen3", lora=True), TOKENIZER)
    for size in (0, 5):
        assert generate(backend, batch_size=size) == generate(plain)


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

    # The signature is probed.
    wrong.__signature__ = inspect.signature(documented)  # type: ignore[attr-defined]
    monkeypatch.setattr(varlen, "varlen_attn", wrong)
    assert not backend._try_pages(Trial(backend._copy))
    assert backend.fallbacks[0].startswith("rollouts without attention by pages")
    backend._is_paged = False
    assert generate(backend, PROMPTS[:4])


def test_a_torch_without_the_kernel(monkeypatch: pytest.MonkeyPatch, backend: NativeBackend) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", lambda query, key, value, cu_seq_q, cu_seq_k, max_q, max_k: query)
    assert not backend._try_pages(Trial(backend._copy))
    assert "varlen_attn of this torch has no block_table, enable_gqa, scale, seqused_k" in backend.fallbacks[0]
