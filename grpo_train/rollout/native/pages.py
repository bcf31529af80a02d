"""Attention to slots by torch's kernel for keys and values in pages: each row reads as many positions as it has.

A slot is a row of neighboring pages. Not measured on a GPU.

Shape suffixes: N sequences (slots or entries), P pages of each, T queries of all sequences, L positions of a sequence,
Q query heads, G key/value heads, D head dimension.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

PAGE = 256
"""Positions of a page: torch's flash kernel accepts multiples of 256."""


@dataclass(frozen=True)
class Pages:
    """Which keys the queries of each sequence see; int32."""

    table_NP: Tensor
    """Index of each page."""
    used_N: Tensor
    """Positions, from the first one on."""
    query_ends: Tensor
    """Cumulative number of queries, (N + 1,)."""
    key_ends: Tensor
    """Cumulative number of positions, (N + 1,)."""
    queries: int
    """Of each sequence."""


def pages_of(place_N: Tensor, used_N: Tensor, length: int, queries: int = 1) -> Pages:
    """Pages of slots or entries with ``length`` positions each, a multiple of :data:`PAGE`, of which the first
    ``used_N`` are seen by ``queries`` queries."""
    count, device = length // PAGE, place_N.device
    first_N1 = place_N.to(torch.int32).unsqueeze(1) * count
    numbers = torch.arange(len(place_N) + 1, dtype=torch.int32, device=device)
    return Pages(
        table_NP=first_N1 + torch.arange(count, dtype=torch.int32, device=device),
        used_N=used_N.to(torch.int32),
        query_ends=numbers * queries,
        key_ends=numbers * length,
        queries=queries,
    )


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def lacks() -> str:
    """What this torch lacks for attention by pages; "" = nothing."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return "this torch has no varlen_attn"
    missing = {"block_table", "seqused_k", "enable_gqa", "scale"} - _parameters(varlen_attn)
    return f"varlen_attn of this torch has no {', '.join(sorted(missing))}" if missing else ""


def paged_attention(
    query_TQD: Tensor, keys_NLGD: Tensor, values_NLGD: Tensor, pages: Pages, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention (T, Q, D), and the logarithm of the sum of its exponentiated scores (T, Q).

    Raises NotImplementedError for a torch without this kernel, RuntimeError for heads that it does not support.
    """
    if reason := lacks():
        raise NotImplementedError(reason)
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    length = keys_NLGD.shape[1]
    options: dict[str, Any] = {"num_splits": 1} if "num_splits" in _parameters(varlen_attn) else {}
    found_TQD, sum_QT = varlen_attn(
        query_TQD,
        keys_NLGD.unflatten(1, (-1, PAGE)).flatten(0, 1),
        values_NLGD.unflatten(1, (-1, PAGE)).flatten(0, 1),
        pages.query_ends,
        pages.key_ends,
        pages.queries,
        length,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        enable_gqa=query_TQD.shape[1] != keys_NLGD.shape[2],
        seqused_k=pages.used_N,
        block_table=pages.table_NP,
        **options,
    )
    return found_TQD, sum_QT.transpose(0, 1)
