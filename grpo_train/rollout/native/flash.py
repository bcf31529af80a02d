"""Attention to slots by FlashAttention's kernel for sequences of different lengths: each row reads as many positions as
it has.

The kernel takes the first key and the number of keys of each sequence (``cum_seq_k``, ``seqused_k``), so a slot need
not be full, and rows may be in any order.

Shape suffixes: N sequences (slots or entries), T queries of all sequences, L positions of a sequence, Q query heads, G
key/value heads, D head dimension.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


@dataclass(frozen=True)
class Spans:
    """Which keys the queries of each sequence see; int32."""

    first: Tensor
    """Index of the first position, (N + 1,); the last one is not used."""
    used_N: Tensor
    """Positions from there on."""
    query_ends: Tensor
    """Cumulative number of queries, (N + 1,)."""
    queries: int
    """Of each sequence."""


def spans_of(place_N: Tensor, used_N: Tensor, length: int, queries: int = 1) -> Spans:
    """Slots or entries of ``length`` positions, of which the first ``used_N`` are seen by ``queries`` queries."""
    numbers = torch.arange(len(place_N) + 1, dtype=torch.int32, device=place_N.device)
    return Spans(pad(place_N.to(torch.int32) * length, (0, 1)), used_N.to(torch.int32), numbers * queries, queries)


kernel: Any = torch.ops.aten._flash_attention_forward.default
"""torch's binding of FlashAttention."""
PARAMETERS = frozenset(argument.name for argument in kernel._schema.arguments)
OPTIONS = {"num_splits": 1} if "num_splits" in PARAMETERS else {}
"""One part of the keys for all numbers of rows, where it can be set: the order of the sums does not depend on it."""


def lacks() -> str:
    """What this torch lacks for this attention; "" = nothing."""
    return "" if "seqused_k" in PARAMETERS else "FlashAttention of this torch has no seqused_k"


def flash_attention(
    query_TQD: Tensor, keys_NLGD: Tensor, values_NLGD: Tensor, spans: Spans, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention (T, Q, D), and the logarithm of the sum of its exponentiated scores (T, Q).

    Raises RuntimeError for heads that the kernel does not support.
    """
    found_TQD, sum_QT, *_ = kernel(
        query_TQD,
        keys_NLGD.flatten(0, 1),
        values_NLGD.flatten(0, 1),
        spans.query_ends,
        spans.first,
        spans.queries,
        keys_NLGD.shape[1],
        0.0,
        False,
        False,
        scale=scale,
        seqused_k=spans.used_N,
        **OPTIONS,
    )
    return found_TQD, sum_QT.transpose(0, 1)
