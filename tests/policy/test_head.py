"""Chunked head: equal to whole logits, without materializing them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from grpo_train.policy import head
from grpo_train.policy.head import logps_and_entropy, logps_of_logits, logps_of_module

N, H, V = 13, 6, 29
CHUNKS = [V, 4 * V, 1000 * V]


class Largest(TorchDispatchMode):
    """Records the largest tensor that any operation returns."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for value in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(value, Tensor):
                self.numel = max(self.numel, value.numel())
        return result


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)


def chunks_of(monkeypatch: pytest.MonkeyPatch, elements: int) -> None:
    monkeypatch.setattr(head, "chunk_elements", lambda device: elements)


def operands(
    dtype: torch.dtype = torch.float64, *, biased: bool = True
) -> tuple[Tensor, Tensor, Tensor | None, Tensor]:
    hidden = torch.randn(N, H, dtype=dtype, requires_grad=True)
    weight = torch.randn(V, H, dtype=dtype, requires_grad=True)
    bias = torch.randn(V, dtype=dtype, requires_grad=True) if biased else None
    return hidden, weight, bias, torch.randint(V, (N,))


def gradients(outputs: tuple[Tensor, Tensor], inputs: list[Tensor], *, entropy: bool) -> Iterator[Tensor]:
    """Gradients of a weighted sum of the outputs."""
    logps, entropies = outputs
    weights = torch.linspace(-1, 2, len(logps), dtype=logps.dtype)
    total = (logps * weights).sum() + ((entropies * weights.flip(0)).sum() if entropy else 0.0)
    yield from torch.autograd.grad(total, inputs)


@pytest.mark.parametrize("elements", CHUNKS)
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("entropy", [True, False])
def test_gradcheck(monkeypatch: pytest.MonkeyPatch, elements: int, biased: bool, entropy: bool) -> None:
    chunks_of(monkeypatch, elements)
    hidden, weight, bias, targets = operands(biased=biased)

    def function(*args: Tensor) -> tuple[Tensor, ...]:
        found = logps_and_entropy(args[0], args[1], bias, targets, temperature=0.7, entropy_gradient=entropy)
        return found if entropy else found[:1]

    inputs = (hidden, weight, bias) if biased else (hidden, weight)
    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("elements", CHUNKS)
@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_matches_whole_logits(
    monkeypatch: pytest.MonkeyPatch, elements: int, entropy: bool, temperature: float
) -> None:
    chunks_of(monkeypatch, elements)
    hidden, weight, bias, targets = operands()
    assert bias is not None
    options: dict[str, Any] = {"temperature": temperature, "entropy_gradient": entropy}
    linear = torch.nn.functional.linear
    expected = logps_of_logits(linear(hidden, weight, bias), targets, **options)
    chunked = logps_and_entropy(hidden, weight, bias, targets, **options)
    through = logps_of_module(lambda x: linear(x, weight, bias), hidden, targets, vocabulary=V, **options)
    inputs = [hidden, weight, bias]
    wanted = list(gradients(expected, inputs, entropy=entropy))
    for found in (chunked, through):
        for a, b in zip((*found, *gradients(found, inputs, entropy=entropy)), (*expected, *wanted), strict=True):
            assert (a - b).abs().max() <= 1e-12
        assert found[1].requires_grad == entropy


def test_uniform_logits() -> None:
    logps, entropy = logps_and_entropy(
        torch.zeros(3, 4), torch.zeros(8, 4), None, torch.tensor([0, 3, 7]), temperature=1
    )
    torch.testing.assert_close(logps, -torch.tensor(8.0).log().expand(3))
    torch.testing.assert_close(entropy, torch.tensor(8.0).log().expand(3))


def test_entropy_gradient_alone() -> None:
    hidden, weight, bias, targets = operands()
    assert bias is not None
    options: dict[str, Any] = {"temperature": 0.9, "entropy_gradient": True}
    _, found = logps_and_entropy(hidden, weight, bias, targets, **options)
    _, expected = logps_of_logits(hidden @ weight.t() + bias, targets, **options)
    for a, b in zip(*(torch.autograd.grad(x.sum(), [hidden, weight]) for x in (found, expected)), strict=True):
        assert (a - b).abs().max() <= 1e-12


class Passes(TorchDispatchMode):
    """Operations over (C, V) besides products, views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = str(func).removeprefix("aten.").split(".")[0]
        is_whole = any(isinstance(x, Tensor) and x.numel() == N * V for x in [*args, result])
        if is_whole and not func.is_view and name not in ("addmm", "mm", "new_empty", "gather", "index", "index_put_"):
            self.names.append(name)
        return result


@pytest.mark.parametrize(("entropy", "backward"), [(False, ["sub_", "exp_"]), (True, ["softmax", "addcmul", "mul_"])])
def test_a_chunk_takes_few_passes(entropy: bool, backward: list[str]) -> None:
    """Rounding a factor to 16 bits is one more."""
    hidden, weight, _, targets = operands(biased=False)
    with Passes() as passes:
        found = logps_and_entropy(hidden, weight, None, targets, temperature=0.7, entropy_gradient=entropy)
    assert passes.names == ["log_softmax", "exp", "mul_", "sum"]
    total = found[0].sum() + (found[1].sum() if entropy else 0.0)
    with Passes() as passes:
        total.backward()
    assert passes.names == backward


def test_chunks_follow_the_memory_of_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 80 * 2**30

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Properties)
    assert head.chunk_elements.__wrapped__(torch.device("cuda", 0)) == 80 * 2**30 // 128 // 4
    Properties.total_memory = 2**40
    assert head.chunk_elements.__wrapped__(torch.device("cuda", 0)) == 2**29, "2 GiB of logits"
    assert head.chunk_elements(torch.device("cpu")) == 2**23


@pytest.mark.parametrize("entropy", [True, False])
@pytest.mark.parametrize("frozen", [True, False])
def test_whole_logits_are_not_materialized(monkeypatch: pytest.MonkeyPatch, entropy: bool, frozen: bool) -> None:
    tokens, vocabulary, chunk = 96, 20_000, 4 * 20_000
    chunks_of(monkeypatch, chunk)
    hidden = torch.randn(tokens, 3, requires_grad=True)
    weight = torch.randn(vocabulary, 3, requires_grad=not frozen)
    targets = torch.randint(vocabulary, (tokens,))
    with Largest() as largest:
        logps, entropies = logps_and_entropy(hidden, weight, None, targets, temperature=0.8, entropy_gradient=entropy)
        (logps + entropies).sum().backward()
    assert largest.numel <= chunk < tokens * vocabulary / 20
    assert (weight.grad is None) == frozen
    with Largest() as largest:
        logps_of_logits(hidden @ weight.t(), targets, temperature=0.8)
    assert largest.numel == tokens * vocabulary, "the recorder must see whole logits"


def test_frozen_weight_costs_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, _, targets = operands()
    monkeypatch.setattr(head._Products, "add_weight_gradient", None)
    logps, _ = logps_and_entropy(hidden, weight.detach(), None, targets, temperature=1.0)
    assert len(torch.autograd.grad(logps.sum(), hidden)) == 1


@pytest.mark.parametrize("entropy", [True, False])
def test_bfloat16_factors_give_float32_sums(entropy: bool) -> None:
    """Float32 weights and products of rounded factors, as under autocast, against float64 on the rounded values."""
    hidden, weight, _, targets = operands(torch.float32, biased=False)
    options: dict[str, Any] = {"temperature": 0.7, "entropy_gradient": entropy}
    found = logps_and_entropy(hidden, weight, None, targets, dtype=torch.bfloat16, **options)
    exact = [x.detach().bfloat16().double().requires_grad_() for x in (hidden, weight)]
    expected = logps_of_logits(exact[0] @ exact[1].t(), targets, **options)
    for a, b in zip(found, expected, strict=True):
        assert a.dtype == torch.float32
        assert (a - b).abs().max() <= 1e-5
    grads = gradients(found, [hidden, weight], entropy=entropy)
    for a, b in zip(grads, gradients(expected, exact, entropy=entropy), strict=True):
        assert a.dtype == torch.float32
        assert (a - b).norm() <= 5e-3 * b.norm()


def test_small_gradient_survives_bfloat16() -> None:
    """1 - p is computed before rounding: rounding p first would lose it where p is near 1."""
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0]], dtype=torch.bfloat16)
    hidden = torch.tensor([[7.0, 0.0]], dtype=torch.bfloat16, requires_grad=True)
    logps, _ = logps_and_entropy(hidden, weight, None, torch.tensor([0]), temperature=1.0)
    logps.sum().backward()
    assert hidden.grad is not None
    one_minus_p = torch.sigmoid(torch.tensor(-7.0))
    torch.testing.assert_close(hidden.grad[0, 0].float(), one_minus_p, rtol=1e-2, atol=0)


def test_logits_of_any_size_stay_finite() -> None:
    hidden, weight, _, targets = operands(torch.float32, biased=False)
    logps, entropy = logps_and_entropy(hidden * 1e4, weight, None, targets, temperature=0.5, entropy_gradient=True)
    (logps + entropy).sum().backward()
    assert hidden.grad is not None
    assert torch.isfinite(logps).all()
    assert torch.isfinite(entropy).all()
    assert torch.isfinite(hidden.grad).all()


def test_outer_autocast_changes_nothing() -> None:
    hidden, weight, _, targets = operands(torch.float32, biased=False)
    expected, _ = logps_and_entropy(hidden, weight, None, targets, temperature=1.0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found, _ = logps_and_entropy(hidden, weight, None, targets, temperature=1.0)
        found.sum().backward()
    assert torch.equal(found, expected)
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
