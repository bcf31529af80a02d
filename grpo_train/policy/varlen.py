"""torch's attention kernel for sequences of different lengths, where it works."""

from __future__ import annotations

import inspect
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from grpo_train.policy.memory import is_out_of_memory

LONGEST_TRIAL = 4096
"""Tokens of a trial's longest sequence at most: what it is compared with takes memory and time."""


def trial_length(longest: int) -> int:
    """Length of the trial for rows whose longest sequence has ``longest`` tokens: the next power of two."""
    return min(LONGEST_TRIAL, 1 << max(5, (longest - 1).bit_length()))


@lru_cache(maxsize=64)
def varlen_call(
    heads: tuple[int, int, int], scale: float, window: int | None, dtype: torch.dtype, device: torch.device, length: int
) -> Any:
    """torch's ``varlen_attn`` as a function of (query, key, value, ends, longest, window), for each of its signatures
    (2.10: is_causal; 2.11: scale and window_size; 2.12: enable_gqa).

    The reason as a string where it is missing, where only kernels that repeat may run (its backward pass adds in any
    order), or where a trial with these heads, this window and sequences of up to ``length`` tokens differs from sdpa in
    values or gradients. Raises torch.OutOfMemoryError: a lack of memory says nothing about the kernel.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:  # an older torch
        return "this torch has none"
    known = inspect.signature(varlen_attn).parameters
    queries, groups, width_D = heads

    def call(
        query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, window: int | None, repeats: int
    ) -> Tensor:
        options: dict[str, Any] = {}
        if "window_size" in known:
            options["window_size"] = (-1 if window is None else window - 1, 0)
        else:
            options["is_causal"] = True
        if "scale" in known:
            options["scale"] = scale
        if "enable_gqa" in known:
            options["enable_gqa"] = queries != groups
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, dim=1), value.repeat_interleave(repeats, dim=1)
        result = varlen_attn(query, key, value, ends, ends, longest, longest, **options)
        assert isinstance(result, Tensor)  # a pair only when weights are requested
        return result

    lacks_scale = "scale" not in known and abs(scale * width_D**0.5 - 1) > 1e-6
    if lacks_scale or (window is not None and "window_size" not in known):
        return f"that of this torch has no {'scale' if lacks_scale else 'window_size'}"
    if torch.are_deterministic_algorithms_enabled():
        return "its backward pass does not repeat bit for bit"
    reason = ""
    # Before enable_gqa, keys that queries share are not documented; where they fail, they are repeated.
    for repeats in (1,) if queries == groups or "enable_gqa" in known else (1, queries // groups):
        found = partial(call, repeats=repeats)
        try:
            if _agrees(found, heads, scale, window, dtype, device, length):
                return found
            reason = "a trial differs from sdpa"
        except (RuntimeError, TypeError, ValueError) as error:  # unsupported heads, or an unknown signature
            if is_out_of_memory(error):
                raise
            reason = (str(error) or repr(error)).strip().splitlines()[0]
    return reason


def _agrees(
    call: Any,
    heads: tuple[int, int, int],
    scale: float,
    window: int | None,
    dtype: torch.dtype,
    device: torch.device,
    length: int,
) -> bool:
    """Whether ``call`` matches sdpa in float32 on three sequences, in values and gradients."""
    lengths = (9, 17, length)
    # Its answer is kept for the process; the first question may come from a rollout, which has no gradients.
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        # Independent numbers: sums of regular ones cancel out, which leaves the rounding errors of their parts.
        normal = torch.Generator().manual_seed(0)
        shapes = [(sum(lengths), count, heads[2]) for count in (heads[0], heads[1], heads[1], heads[0])]
        *rows, weights = (torch.randn(shape, generator=normal).to(device, dtype) for shape in shapes)
        rows = [row.requires_grad_() for row in rows]
        ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
        found = call(*rows, ends, max(lengths), window)
        results = []
        for query, key, value in zip(*(x.float().split(lengths) for x in rows), strict=True):
            mask = None
            if window is not None:
                mask = torch.ones((len(query), len(query)), dtype=torch.bool, device=device).tril().triu(1 - window)
            query, key, value = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
            options: dict[str, Any] = {"scale": scale, "enable_gqa": heads[0] != heads[1], "is_causal": mask is None}
            result = scaled_dot_product_attention(query, key, value, mask, **options)
            results.append(result.squeeze(0).transpose(0, 1))
        expected = torch.cat(results)
        by_call, by_sdpa = (torch.autograd.grad(x, rows, weights.to(x.dtype)) for x in (found, expected))
    pairs = zip((found, *by_call), (expected, *by_sdpa), strict=True)
    return all(bool((a.float() - b.float()).norm() <= 0.02 * b.float().norm()) for a, b in pairs)
