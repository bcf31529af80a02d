"""Packed rows: no sequence sees another, with any attention kernel."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.attention import varlen
from torch.nn.functional import scaled_dot_product_attention

from grpo_train.policy import packing
from grpo_train.policy.packing import RowMap, pack, packed_attention
from grpo_train.policy.transfer import ArrayTransfer
from grpo_train.policy.varlen import trial_length, varlen_call
from grpo_train.rollout import Completion

CPU = torch.device("cpu")
LENGTHS = [(3, 9), (1, 1), (5, 0), (2, 30), (7, 2), (1, 14), (4, 4), (3, 60)]
"""Prompt and completion lengths."""


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    varlen_call.cache_clear()
    yield
    varlen_call.cache_clear()


def completions_of(lengths: list[tuple[int, int]] = LENGTHS, *, times: int = 1) -> list[Completion]:
    draw = random.Random(0)
    made = []
    for prompt, length in lengths:
        prompt_ids = tuple(draw.randrange(50) for _ in range(prompt))
        for _ in range(times):
            made.append(Completion(prompt_ids, tuple(draw.randrange(50) for _ in range(length)), (), True))
    return made


def one_by_one(query: Tensor, key: Tensor, value: Tensor, row: packing.PackedRow, window: int | None) -> Tensor:
    """(1, N, Q, D): attention of each sequence by itself, with a mask, written to the positions of its tokens."""
    out = torch.empty_like(query.transpose(1, 2))
    for prompt_start, prompt, start, length in row.sequences.tolist():
        positions = torch.tensor([*range(prompt_start, prompt_start + prompt), *range(start, start + length)])
        distance = positions.argsort().unsqueeze(1) - torch.arange(len(positions))
        mask = (distance >= 0) & (distance < (window or len(positions)))
        sequence = (x[:, :, positions] for x in (query, key, value))
        result = scaled_dot_product_attention(*sequence, attn_mask=mask, scale=0.3, enable_gqa=True)
        out = out.index_copy(1, positions, result.transpose(1, 2))
    return out


def test_row_map_matches_plain_indexing() -> None:
    for index in ([2, 0, 3, 1], [0, 0, 2, 0, 2], [3, 1]):
        x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)
        transfer = ArrayTransfer(CPU)
        rows = RowMap(np.array(index), 4, transfer)
        transfer.send()
        weights = torch.randn(len(index), 3, 2, dtype=torch.float64)
        assert torch.equal(rows.pick(x), x[index])
        (found,) = torch.autograd.grad((rows.pick(x) * weights).sum(), x)
        (expected,) = torch.autograd.grad((x[index] * weights).sum(), x)
        torch.testing.assert_close(found, expected)


def test_shared_prompts_are_packed_once() -> None:
    made = completions_of(times=3)
    rows = {share: pack(made, CPU, 60, share) for share in (True, False)}
    tokens = sum(3 * (n - 1) for _, n in LENGTHS if n)
    prompts = sum(prompt for prompt, n in LENGTHS if n)
    assert rows[True].input_ids.shape == (1, prompts + tokens)
    assert rows[False].input_ids.shape == (1, 3 * prompts + tokens)
    for row in rows.values():
        targets = torch.full((len(made) * 60,), -1).index_copy(0, row.slots, row.targets).view(-1, 60)
        for line, completion in zip(targets.tolist(), made, strict=True):
            assert line == [*completion.ids, *[-1] * (60 - len(completion.ids))]
        # a token is predicted by the token before it
        before = [t for c in made for t in [*c.prompt_ids, *c.ids][len(c.prompt_ids) - 1 : -1] if c.ids]
        positions = [len(c.prompt_ids) - 1 + i for c in made for i in range(len(c.ids))]
        assert row.input_ids[0, row.predictors.index].tolist() == before
        assert row.position_ids[0, row.predictors.index].tolist() == positions


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("cost", [0, 2**9, 2**30])
def test_buckets_match_single_sequences(
    monkeypatch: pytest.MonkeyPatch, cost: int, times: int, window: int | None
) -> None:
    monkeypatch.setitem(packing.CALL_COST, "cpu", cost)
    row = pack(completions_of(times=times), CPU, 60, True)
    check_attention(
        row, window, lambda *args: packed_attention(*args, 0.0, 0.3, packed_row=row, sliding_window=window)[0]
    )
    assert row.kernels == {"buckets"}
    assert row.windows == ({5} if window else set())


def check_attention(row: packing.PackedRow, window: int | None, attention: Callable[..., Tensor]) -> None:
    """Values and gradients, with four query heads on two key/value heads."""
    count = row.input_ids.shape[1]
    inputs = [torch.randn(1, heads, count, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)]
    found, expected = attention(torch.nn.Module(), *inputs, None), one_by_one(*inputs, row, window)
    weights = torch.randn_like(expected)
    assert (found - expected).abs().max() <= 1e-12
    grads = (torch.autograd.grad((x * weights).sum(), inputs) for x in (found, expected))
    for a, b in zip(*grads, strict=True):
        assert (a - b).abs().max() <= 1e-12


def test_a_bucket_ends_where_padding_costs_more_than_a_call() -> None:
    lengths = np.array([10, 100, 99, 12, 100, 11])
    assert [bucket.tolist() for bucket in packing._bucket(lengths, 500)] == [[1, 4, 2], [3, 5, 0]]
    assert [bucket.tolist() for bucket in packing._bucket(lengths, 10**9)] == [[1, 4, 2, 3, 5, 0]]


def test_equal_lengths_are_not_gathered() -> None:
    row = pack(completions_of([(3, 5), (2, 6), (4, 4)]), CPU, 6, True)
    assert (row.buckets.shapes, row.buckets.to_row) == ([(3, 7)], None)


def test_dropout_is_applied() -> None:
    row = pack(completions_of(), CPU, 60, True)
    inputs = [torch.randn(1, 2, row.input_ids.shape[1], 8) for _ in range(3)]
    dropped, _ = packed_attention(torch.nn.Module(), *inputs, None, 0.9, packed_row=row)
    assert 0.3 < (dropped == 0).all(dim=-1).float().mean() < 1.0
    kept, _ = packed_attention(torch.nn.Module(), *inputs, None, 0.0, packed_row=row)
    assert (kept != 0).all()


@pytest.mark.parametrize("unknown", [{"softcap": 30.0}, {"is_causal": False}])
def test_other_attention_is_not_supported(unknown: dict[str, Any]) -> None:
    row = pack(completions_of(), CPU, 60, True)
    inputs = [torch.randn(1, 2, row.input_ids.shape[1], 8) for _ in range(3)]
    with pytest.raises(NotImplementedError, match="does not support"):
        packed_attention(torch.nn.Module(), *inputs, None, packed_row=row, **unknown)


# torch's varlen_attn runs only on CUDA. The code around it is tested with stand-ins for each of its signatures.


def stand_in(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    ends: Tensor,
    *,
    scale: float | None,
    window: tuple[int, int],
    grouped: bool,
) -> Tensor:
    results = []
    for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
        distance = torch.arange(end - start).unsqueeze(1) - torch.arange(end - start)
        mask = (distance >= -window[1]) & ((distance <= window[0]) if window[0] >= 0 else True)
        heads = (x[start:end].transpose(0, 1).unsqueeze(0) for x in (query, key, value))
        result = scaled_dot_product_attention(*heads, attn_mask=mask, scale=scale, enable_gqa=grouped)
        results.append(result.squeeze(0).transpose(0, 1))
    return torch.cat(results)


def as_in_2_10(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):  # type: ignore[no-untyped-def]
    assert is_causal
    return stand_in(q, k, v, cu_seq_q, scale=None, window=(-1, 0), grouped=False)


def as_in_2_11(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1)):  # type: ignore[no-untyped-def]
    return stand_in(q, k, v, cu_seq_q, scale=scale, window=window_size, grouped=False)


def as_in_2_12(  # type: ignore[no-untyped-def]
    q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, return_aux=None, scale=None, window_size=(-1, -1), enable_gqa=False
):
    return stand_in(q, k, v, cu_seq_q, scale=scale, window=window_size, grouped=enable_gqa)


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("version", [as_in_2_11, as_in_2_12])
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.usefixtures("fresh_probe")
def test_varlen_kernel_matches_single_sequences(
    monkeypatch: pytest.MonkeyPatch, version: Callable[..., Tensor], times: int, window: int | None
) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", version)
    call = varlen_call((4, 2, 8), 0.3, window, torch.bfloat16, CPU, 64)
    assert call is not None
    row = pack(completions_of(times=times), CPU, 60, True)

    def attention(_: Any, query: Tensor, key: Tensor, value: Tensor, mask: None) -> Tensor:
        rows = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
        return packing._by_varlen(call, rows, row, window).unsqueeze(0)

    check_attention(row, window, attention)


@pytest.mark.usefixtures("fresh_probe")
def test_oldest_varlen_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen, "varlen_attn", as_in_2_10)
    assert varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 64)
    assert varlen_call((4, 2, 16), 0.3, None, torch.bfloat16, CPU, 64) == "that of this torch has no scale"
    assert varlen_call((4, 2, 16), 0.25, 5, torch.bfloat16, CPU, 64) == "that of this torch has no window_size"


@pytest.mark.parametrize("fault", ["wrong", "refuses"])
@pytest.mark.usefixtures("fresh_probe")
def test_wrong_kernel_is_not_used(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    def faulty(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False):  # type: ignore[no-untyped-def]
        if fault == "refuses":
            raise RuntimeError("no kernel for this head dimension")
        return stand_in(q, k, v, torch.tensor([0, len(q)]), scale=scale, window=window_size, grouped=enable_gqa)

    monkeypatch.setattr(varlen, "varlen_attn", faulty)
    assert varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 64) == (
        "no kernel for this head dimension" if fault == "refuses" else "a trial differs from sdpa"
    )


@pytest.mark.usefixtures("fresh_probe")
def test_the_trial_in_a_rollout_is_that_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is kept: a rollout, which has no gradients, may ask first."""
    monkeypatch.setattr(varlen, "varlen_attn", as_in_2_12)
    with torch.inference_mode():
        assert callable(varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 64))
    assert varlen_call.cache_info().misses == 1
    assert callable(varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 64))
    assert varlen_call.cache_info().misses == 1


@pytest.mark.usefixtures("fresh_probe")
def test_the_trial_runs_the_lengths_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is wrong for long sequences only, and one that lacks memory, which says nothing about it."""

    def wrong_when_long(
        q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=False
    ):  # type: ignore[no-untyped-def]
        result = stand_in(q, k, v, cu_seq_q, scale=scale, window=window_size, grouped=enable_gqa)
        return result if max_q <= 128 else result * 2

    monkeypatch.setattr(varlen, "varlen_attn", wrong_when_long)
    assert varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 128)
    assert varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 256) == "a trial differs from sdpa"
    assert [trial_length(n) for n in (3, 32, 33, 1000, 100_000)] == [32, 32, 64, 1024, 4096]

    def no_memory(*_: Any, scale: Any = None, window_size: Any = None, enable_gqa: bool = False) -> Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(varlen, "varlen_attn", no_memory)
    with pytest.raises(torch.OutOfMemoryError):
        varlen_call((4, 2, 16), 0.25, None, torch.bfloat16, CPU, 64)
