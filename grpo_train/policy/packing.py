"""Packing completions into one row without padding, with attention within each sequence.

A prompt shared by several completions is in the row once, since its hidden states do not depend on what follows. Only
attention needs it once per completion: there the row is gathered into sequences and the results are gathered back.

Shape suffixes: N tokens of the row, M predicted tokens, S sequences, L their padded length, K tokens of all sequences,
Q query heads, G key/value heads, D head dimension, B completions, T padded completion length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo_train.policy.completion import Completion
from grpo_train.policy.transfer import ArrayTransfer
from grpo_train.policy.varlen import trial_length, varlen_call

ATTENTION = "sdpa_packed"
"""Name of our attention in transformers: sdpa, unless a forward pass gets a packed row."""

CALL_COST = {"cpu": 2**14, "cuda": 2**18}
"""Cost of an sdpa call in (query, key) pairs, by device type: padding up to that is cheaper than another bucket."""


class RowMap:
    """Row gather ``x[index]`` with a cheaper backward pass than index_add.

    Gradients of rows picked once are moved instead of added; those of rows picked repeatedly are summed in at least
    float32. Positions where ``real`` is false are padding, with zero gradient.
    """

    def __init__(self, index: np.ndarray, rows: int, transfer: ArrayTransfer, real: np.ndarray | None = None) -> None:
        """The map can be used once the transfer is sent."""
        self.rows = rows
        self._index = transfer.add(index)
        positions = np.arange(len(index)) if real is None else np.flatnonzero(real)
        unique, first = np.unique(index[positions], return_index=True)
        repeats = np.delete(positions, first)
        self._complete = len(unique) == rows
        self._from, self._to = transfer.add(positions[first]), transfer.add(unique)
        self._repeats_from = transfer.add(repeats) if len(repeats) else None
        self._repeats_to = transfer.add(index[repeats]) if len(repeats) else None

    @property
    def index(self) -> Tensor:
        return self._index.tensor

    def pick(self, x: Tensor) -> Tensor:
        """(rows, …) to (len(index), …)."""
        picked: Tensor = _Pick.apply(x, self)
        return picked

    def put_back(self, grad: Tensor) -> Tensor:
        """Transposed map: (len(index), …) to (rows, …), summed over repeats."""
        moved = grad.index_select(0, self._from.tensor)
        if not self._complete:
            moved = grad.new_zeros((self.rows, *grad.shape[1:])).index_copy_(0, self._to.tensor, moved)
        if self._repeats_from is None or self._repeats_to is None:
            return moved
        wide = moved if moved.dtype == torch.float64 else moved.float()
        repeats = grad.index_select(0, self._repeats_from.tensor).to(wide.dtype)
        return wide.index_add_(0, self._repeats_to.tensor, repeats).to(grad.dtype)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: RowMap) -> Tensor:
        ctx.rows = rows
        return x.index_select(0, rows.index)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.rows.put_back(grad), None


@dataclass(frozen=True)
class Gathered:
    """Maps from the row's tokens to sequences and back."""

    shapes: list[tuple[int, int]]
    """(S, L) of each bucket, in the order of the K gathered tokens."""
    to_sequences: RowMap | None
    """N → K; None where the row equals the sequences."""
    to_row: RowMap | None
    """K → N."""


@dataclass(eq=False)
class PackedRow:
    """Inputs of one forward pass over a packed row."""

    input_ids: Tensor
    """(1, N)."""
    position_ids: Tensor
    """(1, N), continuing from the prompt in each completion."""
    predictors: RowMap
    """N → M: the tokens whose hidden states predict completion tokens."""
    targets: Tensor
    """(M,), the predicted tokens."""
    slots: Tensor
    """(M,), their indices in a flattened (B, T)."""
    sequences: np.ndarray
    """(S, 4): start in the row and length of each sequence's prompt, then of its completion."""
    windows: set[int] = field(default_factory=set)
    """Sliding windows used by attention layers."""
    kernels: set[str] = field(default_factory=set)
    """Kernels used by attention layers."""
    problems: set[str] = field(default_factory=set)
    """Why varlen_attn is not used."""
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def model_inputs(self, *, flash: bool = False) -> dict[str, Any]:
        """Arguments of the model's forward; ``flash`` for transformers' flash attention, which starts a sequence where
        position_ids restart."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "position_ids": self.position_ids, "use_cache": False}
        if flash:
            return {**inputs, "attention_mask": None}
        # transformers passes a 4-D mask on and builds no (N, N) one; our attention ignores it.
        unused = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.input_ids.device)
        return {**inputs, "attention_mask": unused, "packed_row": self}

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return int(self._lengths().max())

    @cached_property
    def buckets(self) -> Gathered:
        """Sequences in buckets of similar length, padded on the right, where causal attention does not look."""
        lengths = self._lengths()
        buckets = _bucket(lengths, CALL_COST.get(self.input_ids.device.type, CALL_COST["cuda"]))
        shapes = [(len(bucket), int(lengths[bucket[0]])) for bucket in buckets]
        order = np.concatenate(buckets)
        widths = np.repeat([width for _, width in shapes], [count for count, _ in shapes])
        positions = _ranges(np.cumsum(widths) - widths, lengths[order])
        index = np.zeros(int(widths.sum()), dtype=np.int64)
        real = np.zeros(len(index), dtype=bool)
        index[positions], real[positions] = self._tokens(order), True
        transfer = ArrayTransfer(self.input_ids.device)
        gathered = self._gathered(shapes, index, real, transfer)
        transfer.send()
        return gathered

    @cached_property
    def ragged(self) -> tuple[Gathered, Tensor, int]:
        """Concatenated sequences, their cumulative lengths (S + 1,) int32, and the greatest length."""
        lengths = self._lengths()
        index = self._tokens(np.arange(len(lengths)))
        transfer = ArrayTransfer(self.input_ids.device)
        ends = transfer.add(np.concatenate([[0], lengths.cumsum()]).astype(np.int32))
        gathered = self._gathered([(1, len(index))], index, np.ones(len(index), dtype=bool), transfer)
        transfer.send()
        return gathered, ends.tensor, int(lengths.max())

    def band(self, length_L: int, window: int, device: torch.device) -> Tensor:
        """(L, L) bool: causal, limited to the last ``window`` tokens, the token itself included."""
        if (length_L, window) not in self._masks:
            positions = torch.arange(length_L, device=device)
            distance = positions.unsqueeze(1) - positions
            self._masks[length_L, window] = (distance >= 0) & (distance < window)
        return self._masks[length_L, window]

    def _lengths(self) -> np.ndarray:
        """(S,), prompt plus completion."""
        lengths: np.ndarray = self.sequences[:, 1] + self.sequences[:, 3]
        return lengths

    def _tokens(self, order: np.ndarray) -> np.ndarray:
        """Positions in the row of the tokens of sequences, taken in ``order``."""
        ordered = self.sequences[order]
        return _ranges(ordered[:, 0::2].ravel(), ordered[:, 1::2].ravel())

    def _gathered(
        self, shapes: list[tuple[int, int]], index: np.ndarray, real: np.ndarray, transfer: ArrayTransfer
    ) -> Gathered:
        count = self.input_ids.shape[1]
        if len(index) == count and (index == np.arange(count)).all():
            return Gathered(shapes, None, None)
        back = np.empty(count, dtype=np.int64)
        positions = np.flatnonzero(real)[::-1]  # reversed, so that the first of several copies wins
        back[index[positions]] = positions
        return Gathered(shapes, RowMap(index, count, transfer, real), RowMap(back, len(index), transfer))


def pack(completions: Sequence[Completion], device: torch.device, width_T: int, share_prompts: bool) -> PackedRow:
    """Pack completions into a row. The last token of a completion, which predicts nothing, and prompts with empty
    completions only are left out; at least one completion must have a token.

    Args:
        share_prompts: put a prompt shared by several completions into the row once.
    """
    groups: dict[Any, list[int]] = {}
    for row, completion in enumerate(completions):
        if completion.ids:
            groups.setdefault(completion.prompt_ids if share_prompts else row, []).append(row)
    tokens: list[int] = []
    targets: list[int] = []
    spans: list[tuple[int, int]] = []
    """First position ID and length of each prompt and completion, in the row's order."""
    predicted: list[tuple[int, int, int]] = []
    """First predictor, first slot and length of each run of predicted tokens."""
    sequences: list[tuple[int, int, int, int]] = []
    for members in groups.values():
        prompt_ids = completions[members[0]].prompt_ids
        prompt_start, prompt_length = len(tokens), len(prompt_ids)
        tokens += prompt_ids
        spans.append((0, prompt_length))
        before = len(sequences)
        for row in members:
            ids = completions[row].ids
            start, length = len(tokens), len(ids) - 1
            targets += ids
            predicted.append((prompt_start + prompt_length - 1, row * width_T, 1))
            if length:
                tokens += ids[:-1]
                spans.append((prompt_length, length))
                predicted.append((start, row * width_T + 1, length))
                sequences.append((prompt_start, prompt_length, start, length))
        if before == len(sequences):
            sequences.append((prompt_start, prompt_length, prompt_start + prompt_length, 0))
    predictors, slots, lengths = zip(*predicted, strict=True)
    transfer = ArrayTransfer(device)
    rows = (np.array(tokens, dtype=np.int64), _ranges(*zip(*spans, strict=True)))
    input_ids, position_ids, target_ids, slot_ids = map(
        transfer.add, (*rows, np.array(targets, dtype=np.int64), _ranges(slots, lengths))
    )
    predictor_map = RowMap(_ranges(predictors, lengths), len(tokens), transfer)
    transfer.send()
    return PackedRow(
        input_ids=input_ids.tensor.unsqueeze(0),
        position_ids=position_ids.tensor.unsqueeze(0),
        predictors=predictor_map,
        targets=target_ids.tensor,
        slots=slot_ids.tensor,
        sequences=np.array(sequences),
    )


def packed_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    packed_row: PackedRow | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """transformers' sdpa; with a ``packed_row``, causal attention within each of its sequences.

    Args:
        query: (1, Q, N, D); key and value (1, G, N, D).
        kwargs: ``sliding_window``: number of tokens that a token sees, itself included.

    Returns:
        (1, N, Q, D), without weights.

    Raises:
        NotImplementedError: the attention is not plain causal attention.
    """
    if packed_row is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
    unknown = [name for name in ("softcap", "position_bias", "s_aux", "head_mask") if kwargs.get(name) is not None]
    if unknown or not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotImplementedError(f"packed attention does not support {', '.join(unknown) or 'non-causal layers'}")
    window: int | None = kwargs.get("sliding_window")
    if window is not None:
        packed_row.windows.add(window)
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype == torch.float32:
        narrow = torch.get_autocast_dtype(device)
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    # (N, heads, D)
    rows = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if device == "cuda" and dropout == 0.0 and query.dtype in (torch.float16, torch.bfloat16):
        heads = (query.shape[1], key.shape[1], query.shape[3])
        length = trial_length(packed_row.longest)
        call = varlen_call(heads, scale, window, query.dtype, query.device, length)
        if isinstance(call, str):
            packed_row.problems.add(call)
        else:
            packed_row.kernels.add("varlen_attn")
            return _by_varlen(call, rows, packed_row, window).unsqueeze(0), None
    packed_row.kernels.add("buckets")
    return _by_buckets(rows, packed_row, dropout, scale, window).unsqueeze(0), None


def _by_buckets(rows: list[Tensor], packed_row: PackedRow, dropout: float, scale: float, window: int | None) -> Tensor:
    """(N, Q, D) from query (N, Q, D) and key, value (N, G, D), by one sdpa call per bucket."""
    plan = packed_row.buckets
    if plan.to_sequences is not None:
        rows = [plan.to_sequences.pick(x) for x in rows]
    sizes = [count_S * length_L for count_S, length_L in plan.shapes]
    grouped = rows[0].shape[1] != rows[1].shape[1]
    results = []
    for (count_S, length_L), *bucket in zip(plan.shapes, *(x.split(sizes) for x in rows), strict=True):
        query, key, value = (x.unflatten(0, (count_S, length_L)).transpose(1, 2) for x in bucket)
        band = window is not None and length_L > window
        mask = packed_row.band(length_L, window, query.device) if band and window is not None else None
        options: dict[str, Any] = {"dropout_p": dropout, "scale": scale, "enable_gqa": grouped}
        result_SQLD = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, **options)
        results.append(result_SQLD.transpose(1, 2).flatten(0, 1))
    result = results[0] if len(results) == 1 else torch.cat(results)
    return result if plan.to_row is None else plan.to_row.pick(result)


def _by_varlen(call: Any, rows: list[Tensor], packed_row: PackedRow, window: int | None) -> Tensor:
    """As :func:`_by_buckets`, by torch's kernel for sequences of different lengths."""
    plan, ends, longest = packed_row.ragged
    if plan.to_sequences is not None:
        rows = [plan.to_sequences.pick(x) for x in rows]
    result: Tensor = call(*(x.contiguous() for x in rows), ends, longest, window)
    return result if plan.to_row is None else plan.to_row.pick(result)


def _bucket(lengths: np.ndarray, call_cost: int) -> list[np.ndarray]:
    """Indices of sequences in buckets of similar length, longest first. A bucket takes the next shorter sequence while
    its padding costs less than a call, in (query, key) pairs."""
    order = np.argsort(-lengths, kind="stable")
    starts, waste = [0], 0
    squares = (lengths[order] ** 2).tolist()
    for rank, square in enumerate(squares):
        waste += squares[starts[-1]] - square
        if waste > call_cost:
            starts.append(rank)
            waste = 0
    return np.split(order, starts[1:])


def _ranges(starts: Sequence[int] | np.ndarray, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """Concatenation of ``arange(start, start + length)`` for each pair."""
    counts = np.asarray(lengths, dtype=np.int64)
    before = np.cumsum(counts) - counts
    ranges: np.ndarray = np.arange(counts.sum()) + np.repeat(np.asarray(starts, dtype=np.int64) - before, counts)
    return ranges


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
