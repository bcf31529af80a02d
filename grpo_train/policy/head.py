"""Log-probabilities and entropies from hidden states, without materializing the logits of all tokens.

Shape suffixes: N tokens, C tokens of a chunk, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from grpo_train.policy.memory import is_out_of_memory

CHUNK_ELEMENTS = {"cpu": 2**23}
"""Logits per chunk: on a CPU few enough for its caches, on a GPU see :func:`chunk_elements`."""
CHUNK_BYTES = 2**31
"""Float32 logits of a chunk at most."""
CHUNK_SHARE = 128
"""A chunk's logits take this part of a GPU's memory at most: a fixed number for a model of GPU, so that a resumed run
adds in the same order."""


def logps_and_entropy(
    hidden_NH: Tensor,
    weight_VH: Tensor,
    bias_V: Tensor | None,
    targets_N: Tensor,
    *,
    temperature: float,
    dtype: torch.dtype | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability of each target and entropy of its distribution, softmax((hidden · weightᵀ + bias) / temperature).

    Logits are computed a chunk of tokens at a time, in the forward pass and again in the backward pass, so that memory
    does not grow with N · V.

    Args:
        hidden_NH, weight_VH, bias_V: any floating dtype; gradients only where required.
        targets_N: int64.
        dtype: dtype of the factors of the products (autocast's); default: the hidden states'. Sums, logits and results
            are at least float32.
        entropy_gradient: False detaches the entropy and saves the work.

    Returns:
        logps (N,) and entropy (N,): float32, or float64 for float64 factors.
    """
    factor_dtype = dtype or hidden_NH.dtype
    logps_N, entropy_N = _ChunkedHead.apply(
        hidden_NH, weight_VH, bias_V, targets_N, float(temperature), factor_dtype, entropy_gradient
    )
    return logps_N, entropy_N


class _ChunkedHead(torch.autograd.Function):
    """With z = logits / τ, L = logsumexp(z), l = z - L, p = exp(l) and y the target:

        logp = z_y - L                                H = -Σ p l = L - Σ p z
        ∂logp/∂z_v = 1{v=y} - p_v                     ∂H/∂z_v = -p_v (l_v + H)

    (the latter because ∂L/∂z_v = p_v and ∂(Σ p z)/∂z_v = p_v + p_v (z_v - Σ p z), with Σ p z = L - H). For incoming
    gradients g of logp and h of H:

        D_v = p_v (g + h (l_v + H)) - g 1{v=y}        ∂logits = -D / τ
        ∂hidden = -(1/τ) D · weight                   ∂weight = -(1/τ) Dᵀ · hidden        ∂bias = -(1/τ) Σ D

    Without h, D = g (p - onehot), and g multiplies the (C, H) side of the products. This saves a pass over (C, V), and
    a smaller dtype rounds p - onehot, which is within [-1, 1].
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_NH: Tensor,
        weight_VH: Tensor,
        bias_V: Tensor | None,
        targets_N: Tensor,
        temperature: float,
        dtype: torch.dtype,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        with torch.autocast(hidden_NH.device.type, enabled=False):
            multiply = _Products(hidden_NH, weight_VH, bias_V, dtype)
            count, inverse = len(hidden_NH), 1.0 / temperature
            logps_N, entropy_N, lse_N = (hidden_NH.new_empty(count, dtype=multiply.sums) for _ in range(3))
            buffers = multiply.buffers(2)
            for chunk in multiply.chunks:  # at most four passes over (C, V) after the product
                z_CV = multiply.logits(chunk, buffers[0], inverse)
                l_CV = torch.log_softmax(z_CV, dim=1, out=buffers[1][: len(z_CV)])
                target_C1 = targets_N[chunk].unsqueeze(1)
                logp_C1 = l_CV.gather(1, target_C1)
                logps_N[chunk] = logp_C1.squeeze(1)
                lse_N[chunk] = z_CV.gather(1, target_C1).sub_(logp_C1).squeeze(1)
                p_CV = torch.exp(l_CV, out=z_CV)
                entropy_N[chunk] = _sums_of_products(p_CV, l_CV).neg_()
        ctx.save_for_backward(hidden_NH, weight_VH, bias_V, targets_N, lse_N, entropy_N)
        ctx.temperature, ctx.dtype = temperature, dtype
        ctx.set_materialize_grads(False)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy_N)
        return logps_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logps_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden_NH, weight_VH, bias_V, targets_N, lse_N, entropy_N = ctx.saved_tensors
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        if grad_logps_N is None and grad_entropy_N is None:
            return (None,) * 7
        with torch.autocast(hidden_NH.device.type, enabled=False):
            multiply = _Products(hidden_NH, weight_VH, bias_V, ctx.dtype)
            inverse = 1.0 / ctx.temperature
            grad_logps_N = torch.zeros_like(lse_N) if grad_logps_N is None else grad_logps_N.to(lse_N.dtype)
            grad_hidden_NH = torch.empty_like(hidden_NH) if needs_hidden else None
            grad_weight_VH = weight_VH.new_empty(weight_VH.shape, dtype=multiply.sums) if needs_weight else None
            grad_bias_V = torch.zeros_like(bias_V, dtype=multiply.sums) if needs_bias else None
            buffers = multiply.buffers(1 if grad_entropy_N is None else 2)
            for chunk in multiply.chunks:  # at most four passes over (C, V) between the products
                z_CV = multiply.logits(chunk, buffers[0], inverse)
                g_C1, rows = grad_logps_N[chunk].unsqueeze(1), torch.arange(len(z_CV), device=z_CV.device)
                if grad_entropy_N is None:
                    d_CV = z_CV.sub_(lse_N[chunk].unsqueeze(1)).exp_()
                    d_CV[rows, targets_N[chunk]] -= 1.0
                    scale_C1 = g_C1 * -inverse
                else:
                    h_C1, entropy_C1 = grad_entropy_N[chunk].unsqueeze(1), entropy_N[chunk].unsqueeze(1)
                    d_CV = torch.softmax(z_CV, dim=1, out=buffers[1][: len(z_CV)])
                    # p (g + h (l + H)), with l = z - L
                    constant_C1 = g_C1 + h_C1 * (entropy_C1 - lse_N[chunk].unsqueeze(1))
                    d_CV.mul_(torch.addcmul(constant_C1, z_CV, h_C1, out=z_CV))
                    d_CV[rows, targets_N[chunk]] -= g_C1.squeeze(1)
                    scale_C1 = torch.full_like(g_C1, -inverse)
                if grad_bias_V is not None:
                    grad_bias_V.addmv_(d_CV.t(), scale_C1.squeeze(1))
                factor_CV = multiply.factor(d_CV)
                if grad_hidden_NH is not None:
                    grad_hidden_NH[chunk] = multiply.hidden_gradient(factor_CV).mul_(scale_C1)
                if grad_weight_VH is not None:
                    multiply.add_weight_gradient(grad_weight_VH, factor_CV, chunk, scale_C1)
        return (
            grad_hidden_NH,
            None if grad_weight_VH is None else grad_weight_VH.to(weight_VH.dtype),
            None if grad_bias_V is None or bias_V is None else grad_bias_V.to(bias_V.dtype),
            *(None,) * 4,
        )


def _sums_of_products(left_CV: Tensor, right_CV: Tensor) -> Tensor:
    """Σ_v left · right: (C,); overwrites the left one. In one pass, except on a CPU, where that is slower."""
    if left_CV.device.type == "cpu":
        return left_CV.mul_(right_CV).sum(dim=1)
    return torch.bmm(left_CV.unsqueeze(1), right_CV.unsqueeze(2)).flatten()


class _Products:
    """Chunked products of a linear head: factors rounded to ``dtype``, sums at least float32.

    CUDA multiplies 16-bit factors into float32 directly. Where no such product exists, the factors are rounded and
    widened, which gives the same numbers.
    """

    def __init__(self, hidden_NH: Tensor, weight_VH: Tensor, bias_V: Tensor | None, dtype: torch.dtype) -> None:
        self.sums = torch.float64 if dtype == torch.float64 else torch.float32
        narrow = dtype != self.sums
        self._mixed = narrow and mixed_products(hidden_NH.device, dtype)
        self._dtype = dtype
        self._factor_dtype = dtype if self._mixed or not narrow else self.sums
        self._hidden_NH = hidden_NH
        self._weight_VH = weight_VH.detach().to(dtype).to(self._factor_dtype)
        self._bias_V = None if bias_V is None else bias_V.detach().to(dtype).to(self.sums)
        self._started = False
        count, vocabulary = len(hidden_NH), len(weight_VH)
        limit = max(1, chunk_elements(hidden_NH.device) // vocabulary)
        chunks = -(-count // limit)
        size = -(-count // chunks) if chunks else 0
        self.chunks = [slice(start, min(start + size, count)) for start in range(0, count, size or 1)]
        self._shape = (size, vocabulary)

    def buffers(self, count: int) -> list[Tensor]:
        """``count`` buffers for (C, V) values, reused by all chunks."""
        return [self._hidden_NH.new_empty(self._shape, dtype=self.sums) for _ in range(count)]

    def factor(self, values: Tensor) -> Tensor:
        """``values`` rounded for a product."""
        return values.to(self._dtype).to(self._factor_dtype)

    def logits(self, chunk: slice, buffer_CV: Tensor, scale: float) -> Tensor:
        """(C, V) in ``buffer_CV``, times ``scale``, which the product applies to its sums."""
        hidden_CH = self.factor(self._hidden_NH[chunk])
        out_CV = buffer_CV[: len(hidden_CH)]
        options: dict[str, Any] = {"out_dtype": self.sums} if self._mixed else {}
        torch.addmm(out_CV, hidden_CH, self._weight_VH.t(), beta=0, alpha=scale, out=out_CV, **options)
        return out_CV if self._bias_V is None else out_CV.add_(self._bias_V, alpha=scale)

    def hidden_gradient(self, factor_CV: Tensor) -> Tensor:
        """(C, V) · weight: (C, H)."""
        if self._mixed:
            return torch.mm(factor_CV, self._weight_VH, out_dtype=self.sums)
        return torch.mm(factor_CV, self._weight_VH)

    def add_weight_gradient(self, total_VH: Tensor, factor_CV: Tensor, chunk: slice, scale_C1: Tensor) -> None:
        """``total_VH`` += (C, V)ᵀ · (scale · hidden); the first chunk overwrites it."""
        hidden_CH = self.factor(self._hidden_NH[chunk].to(self.sums) * scale_C1)
        beta, self._started = int(self._started), True
        if self._mixed:
            torch.addmm(total_VH, factor_CV.t(), hidden_CH, out_dtype=self.sums, beta=beta, out=total_VH)
        else:
            torch.addmm(total_VH, factor_CV.t(), hidden_CH, beta=beta, out=total_VH)


@cache
def chunk_elements(device: torch.device) -> int:
    """Logits of a chunk: on a GPU as many as its memory allows, which saves products with a gradient of all weights."""
    if device.type != "cuda":
        return CHUNK_ELEMENTS["cpu"]
    if not torch.cuda.is_available():
        return CHUNK_BYTES // 4
    memory = int(torch.cuda.get_device_properties(device).total_memory)
    return min(CHUNK_BYTES, memory // CHUNK_SHARE) // 4


@cache
def mixed_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether ``device`` multiplies matrices of a 16-bit type into float32 ones; each product is probed once."""
    if device.type != "cuda":
        return False
    ones = torch.ones(16, 16, dtype=dtype, device=device)
    out = torch.empty(16, 16, dtype=torch.float32, device=device)
    options: dict[str, Any] = {"out_dtype": torch.float32}
    try:
        torch.addmm(out, ones, ones.t(), beta=0, alpha=2.0, out=out, **options)
        torch.addmm(out, ones.t(), ones, beta=1, out=out, **options)
        return bool((torch.mm(ones, ones, **options) + out == 64).all())
    except (RuntimeError, TypeError) as error:
        if is_out_of_memory(error):  # says nothing about the products
            raise
        return False


def logps_of_logits(
    logits_NV: Tensor, targets_N: Tensor, *, temperature: float, entropy_gradient: bool = False
) -> tuple[Tensor, Tensor]:
    """:func:`logps_and_entropy` from whole logits, by autograd: the reference, and for heads that are not linear."""
    if logits_NV.dtype != torch.float64:
        logits_NV = logits_NV.float()
    all_logps_NV = torch.log_softmax(logits_NV / temperature, dim=-1)
    logps_N = all_logps_NV.gather(-1, targets_N.unsqueeze(-1)).squeeze(-1)
    if not entropy_gradient:
        all_logps_NV = all_logps_NV.detach()
    # log p may be -inf where p is 0
    p_NV = all_logps_NV.exp()
    return logps_N, torch.where(p_NV > 0, p_NV * all_logps_NV, 0.0).sum(dim=-1).neg()


def logps_of_module(
    head: Callable[[Tensor], Tensor],
    hidden_NH: Tensor,
    targets_N: Tensor,
    *,
    temperature: float,
    vocabulary: int,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """:func:`logps_and_entropy` through any head module (with an adapter, quantized), computing each chunk twice."""

    def chunk_logps(hidden_CH: Tensor, targets_C: Tensor) -> tuple[Tensor, Tensor]:
        return logps_of_logits(head(hidden_CH), targets_C, temperature=temperature, entropy_gradient=entropy_gradient)

    size = max(1, chunk_elements(hidden_NH.device) // vocabulary)
    chunks = zip(hidden_NH.split(size), targets_N.split(size), strict=True)
    results = [checkpoint(chunk_logps, hidden_CH, targets_C, use_reentrant=False) for hidden_CH, targets_C in chunks]
    return torch.cat([logps for logps, _ in results]), torch.cat([entropy for _, entropy in results])
