"""Completions in one row without padding, and an attention in which none sees another.

A prompt with several completions stands in the row once: its hidden states do not depend on what follows. Attention
alone needs it once per completion; there, rows are gathered into sequences and the results gathered back.

Shape suffixes: N tokens of the row, M predicted tokens, S sequences, L their padded length, K tokens of all sequences,
Q query heads, G key/value heads, D head dimension, B completions, T padded completion length.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
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

ATTENTION = "sdpa_packed"
"""Our attention's name in transformers: sdpa, except where a forward pass is given a packed row."""

CALL_COST = {"cpu": 2**14, "cuda": 2**18}
"""A call of sdpa costs about as much as this many (query, key) pairs, by kind of device: padding up to that is cheaper
than another bucket."""


class RowMap:
    """Rows picked from a matrix, each any number of times: ``x[index]``, with a cheaper way back than index_add.

    Gradients of rows picked once are moved, not added; of rows picked more often, they are summed in float32 at least.
    Places where ``real`` is false are padding: whatever is picked there, its gradient is known to be zero.
    """

    def __init__(self, index: np.ndarray, rows: int, device: torch.device, real: np.ndarray | None = None) -> None:
        self.rows = rows
        self.index = _on(index, device)
        places = np.arange(len(index)) if real is None else np.flatnonzero(real)
        unique, first = np.unique(index[places], return_index=True)
        again = np.delete(places, first)
        self._complete = len(unique) == rows
        self._from, self._to = _on(places[first], device), _on(unique, device)
        self._again_from = _on(again, device) if len(again) else None
        self._again_to = _on(index[again], device) if len(again) else None

    def pick(self, x: Tensor) -> Tensor:
        """(rows, …) to (len(index), …)."""
        picked: Tensor = _Pick.apply(x, self)
        return picked

    def put_back(self, grad: Tensor) -> Tensor:
        """The transposed map: (len(index), …) to (rows, …), summed where picked more than once."""
        moved = grad.index_select(0, self._from)
        if not self._complete:
            moved = grad.new_zeros((self.rows, *grad.shape[1:])).index_copy_(0, self._to, moved)
        if self._again_from is None or self._again_to is None:
            return moved
        wide = moved if moved.dtype == torch.float64 else moved.float()
        again = grad.index_select(0, self._again_from).to(wide.dtype)
        return wide.index_add_(0, self._again_to, again).to(grad.dtype)


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
    """How the row's tokens become sequences, and the sequences' results the row's tokens again."""

    shapes: list[tuple[int, int]]
    """(S, L) of each bucket, one after the other in the K gathered tokens."""
    to_sequences: RowMap | None
    """N → K; None where the row already is the sequences."""
    to_row: RowMap | None
    """K → N."""


@dataclass(eq=False)
class PackedRow:
    """What one forward pass over a packed row needs."""

    input_ids: Tensor
    """(1, N)."""
    position_ids: Tensor
    """(1, N), each completion's going on from its prompt's."""
    predictors: RowMap
    """N → M: the tokens whose hidden states predict completion tokens."""
    targets: Tensor
    """(M,), the tokens predicted."""
    slots: Tensor
    """(M,), their places in a flattened (B, T)."""
    sequences: np.ndarray
    """(S, 4): where a sequence's prompt starts in the row and how long it is, then the same of its completion."""
    windows: set[int] = field(default_factory=set)
    """Sliding windows that attention layers have asked for."""
    kernels: set[str] = field(default_factory=set)
    """What attention has been computed with."""
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def model_inputs(self, *, flash: bool = False) -> dict[str, Any]:
        """Arguments of the model's forward; ``flash``: for transformers' own flash attention, which sees sequences
        where position_ids restart."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids, "position_ids": self.position_ids, "use_cache": False}
        if flash:
            return {**inputs, "attention_mask": None}
        # A mask of four dimensions passes unchanged, so no (N, N) one is made; our attention does not look at it.
        unused = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.input_ids.device)
        return {**inputs, "attention_mask": unused, "packed_row": self}

    @cached_property
    def buckets(self) -> Gathered:
        """Sequences of similar length side by side, padded on the right, where causal attention does not look."""
        lengths = self._lengths()
        members = _bucket(lengths, CALL_COST.get(self.input_ids.device.type, CALL_COST["cuda"]))
        shapes = [(len(of), int(lengths[of[0]])) for of in members]
        order = np.concatenate(members)
        widths = np.repeat([width for _, width in shapes], [count for count, _ in shapes])
        places = _ranges(np.cumsum(widths) - widths, lengths[order])
        index = np.zeros(int(widths.sum()), dtype=np.int64)
        real = np.zeros(len(index), dtype=bool)
        index[places], real[places] = self._tokens(order), True
        return self._gathered(shapes, index, real)

    @cached_property
    def ragged(self) -> tuple[Gathered, Tensor, int]:
        """Sequences one after the other, with their cumulative lengths (S + 1,) int32 and the longest."""
        lengths = self._lengths()
        index = self._tokens(np.arange(len(lengths)))
        ends = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]).astype(np.int32)).to(self.input_ids.device)
        return self._gathered([(1, len(index))], index, np.ones(len(index), dtype=bool)), ends, int(lengths.max())

    def band(self, length_L: int, window: int, device: torch.device) -> Tensor:
        """(L, L) bool: causal, and at most ``window`` tokens back, the token itself included."""
        if (length_L, window) not in self._masks:
            places = torch.arange(length_L, device=device)
            back = places.unsqueeze(1) - places
            self._masks[length_L, window] = (back >= 0) & (back < window)
        return self._masks[length_L, window]

    def _lengths(self) -> np.ndarray:
        """(S,), prompt and completion."""
        lengths: np.ndarray = self.sequences[:, 1] + self.sequences[:, 3]
        return lengths

    def _tokens(self, order: np.ndarray) -> np.ndarray:
        """Where in the row the tokens of sequences stand, the sequences taken in this order."""
        ordered = self.sequences[order]
        return _ranges(ordered[:, 0::2].ravel(), ordered[:, 1::2].ravel())

    def _gathered(self, shapes: list[tuple[int, int]], index: np.ndarray, real: np.ndarray) -> Gathered:
        count, device = self.input_ids.shape[1], self.input_ids.device
        if len(index) == count and (index == np.arange(count)).all():
            return Gathered(shapes, None, None)
        back = np.empty(count, dtype=np.int64)
        places = np.flatnonzero(real)[::-1]  # so that of several copies the first one counts
        back[index[places]] = places
        return Gathered(shapes, RowMap(index, count, device, real), RowMap(back, len(index), device))


def pack(completions: Sequence[Completion], device: torch.device, width_T: int, share_prompts: bool) -> PackedRow:
    """Lay completions out in a row. A completion's last token predicts nothing, so it is left out, and so is a prompt
    whose completions are all empty; at least one completion must have a token.

    Args:
        share_prompts: a prompt that several completions have in common stands in the row once.
    """
    groups: dict[Any, list[int]] = {}
    for row, completion in enumerate(completions):
        if completion.ids:
            groups.setdefault(completion.prompt_ids if share_prompts else row, []).append(row)
    tokens: list[int] = []
    targets: list[int] = []
    parts: list[tuple[int, int]] = []
    """First position and length of each prompt and completion, in the row's order."""
    predicted: list[tuple[int, int, int]] = []
    """First predictor, first slot and length of each run of predicted tokens."""
    sequences: list[tuple[int, int, int, int]] = []
    for members in groups.values():
        prompt_ids = completions[members[0]].prompt_ids
        prompt_at, prompt = len(tokens), len(prompt_ids)
        tokens += prompt_ids
        parts.append((0, prompt))
        alone = len(sequences)
        for row in members:
            ids = completions[row].ids
            own_at, own = len(tokens), len(ids) - 1
            targets += ids
            predicted.append((prompt_at + prompt - 1, row * width_T, 1))
            if own:
                tokens += ids[:-1]
                parts.append((prompt, own))
                predicted.append((own_at, row * width_T + 1, own))
                sequences.append((prompt_at, prompt, own_at, own))
        if alone == len(sequences):
            sequences.append((prompt_at, prompt, prompt_at + prompt, 0))
    predictors, slots, lengths = zip(*predicted, strict=True)
    return PackedRow(
        input_ids=torch.tensor([tokens], device=device),
        position_ids=_on(_ranges(*zip(*parts, strict=True)), device).unsqueeze(0),
        predictors=RowMap(_ranges(predictors, lengths), len(tokens), device),
        targets=torch.tensor(targets, device=device),
        slots=_on(_ranges(slots, lengths), device),
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
        kwargs: ``sliding_window``: how many tokens back a token sees, itself included.

    Returns:
        (1, N, Q, D), and no weights. Raises NotImplementedError for what is not plain causal attention.
    """
    if packed_row is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, is_causal=is_causal, **kwargs
        )
    unknown = [name for name in ("softcap", "position_bias", "s_aux", "head_mask") if kwargs.get(name) is not None]
    if unknown or not (getattr(module, "is_causal", True) if is_causal is None else is_causal):
        raise NotImplementedError(f"packed attention is causal, without {', '.join(unknown) or 'exception'}")
    window: int | None = kwargs.get("sliding_window")
    if window is not None:
        packed_row.windows.add(window)
    device = query.device.type
    if torch.is_autocast_enabled(device) and query.dtype == torch.float32:
        narrow = torch.get_autocast_dtype(device)
        query, key, value = query.to(narrow), key.to(narrow), value.to(narrow)
    # (N, heads, D): a token's values side by side
    rows = [x.squeeze(0).transpose(0, 1) for x in (query, key, value)]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if device == "cuda" and dropout == 0.0 and query.dtype in (torch.float16, torch.bfloat16):
        heads = (query.shape[1], key.shape[1], query.shape[3])
        if (call := _varlen_call(heads, scale, window is not None, query.dtype, query.device)) is not None:
            packed_row.kernels.add("varlen_attn")
            return _by_varlen(call, rows, packed_row, window).unsqueeze(0), None
    packed_row.kernels.add("buckets")
    return _by_buckets(rows, packed_row, dropout, scale, window).unsqueeze(0), None


def _by_buckets(rows: list[Tensor], packed_row: PackedRow, dropout: float, scale: float, window: int | None) -> Tensor:
    """(N, Q, D) from query (N, Q, D) and key, value (N, G, D), by one call of sdpa a bucket."""
    plan = packed_row.buckets
    if plan.to_sequences is not None:
        rows = [plan.to_sequences.pick(x) for x in rows]
    sizes = [count_S * length_L for count_S, length_L in plan.shapes]
    grouped = rows[0].shape[1] != rows[1].shape[1]
    results = []
    for (count_S, length_L), *parts in zip(plan.shapes, *(x.split(sizes) for x in rows), strict=True):
        query, key, value = (x.unflatten(0, (count_S, length_L)).transpose(1, 2) for x in parts)
        band = window is not None and length_L > window
        mask = packed_row.band(length_L, window, query.device) if band and window is not None else None
        how: dict[str, Any] = {"dropout_p": dropout, "scale": scale, "enable_gqa": grouped}
        result_SQLD = scaled_dot_product_attention(query, key, value, mask, is_causal=mask is None, **how)
        results.append(result_SQLD.transpose(1, 2).flatten(0, 1))
    result = results[0] if len(results) == 1 else torch.cat(results)
    return result if plan.to_row is None else plan.to_row.pick(result)


def _by_varlen(call: Any, rows: list[Tensor], packed_row: PackedRow, window: int | None) -> Tensor:
    """The same by torch's kernel for sequences of any length."""
    plan, ends, longest = packed_row.ragged
    if plan.to_sequences is not None:
        rows = [plan.to_sequences.pick(x) for x in rows]
    result: Tensor = call(*(x.contiguous() for x in rows), ends, longest, window)
    return result if plan.to_row is None else plan.to_row.pick(result)


@lru_cache(maxsize=64)
def _varlen_call(
    heads: tuple[int, int, int], scale: float, windowed: bool, dtype: torch.dtype, device: torch.device
) -> Any | None:
    """torch's ``varlen_attn`` as a function of (query, key, value, ends, longest, window), under any of the signatures
    it has had (2.10: is_causal; 2.11: scale and window_size; 2.12: enable_gqa).

    None where it is missing, or values or gradients of a small try with these heads are not those of sdpa.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    known = inspect.signature(varlen_attn).parameters
    queries, groups, width_D = heads
    repeats = queries // groups if "enable_gqa" not in known else 1

    def call(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, longest: int, window: int | None) -> Tensor:
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
        assert isinstance(result, Tensor)  # a pair only where more is asked for
        return result

    if (windowed and "window_size" not in known) or ("scale" not in known and abs(scale * width_D**0.5 - 1) > 1e-6):
        return None
    try:
        return call if _agrees(call, heads, scale, 5 if windowed else None, dtype, device) else None
    except (RuntimeError, TypeError, ValueError):  # a kernel that refuses these heads, a signature not foreseen
        return None


def _agrees(
    call: Any, heads: tuple[int, int, int], scale: float, window: int | None, dtype: torch.dtype, device: torch.device
) -> bool:
    """Two sequences by ``call`` against sdpa in float32: values and gradients."""
    lengths = (9, 17)
    with torch.enable_grad(), torch.autocast(device.type, enabled=False):
        rows = [
            torch.sin(torch.arange(sum(lengths) * count * heads[2], device=device) * step)
            .reshape(sum(lengths), count, heads[2])
            .to(dtype)
            .requires_grad_()
            for count, step in ((heads[0], 0.7), (heads[1], 1.3), (heads[1], 2.1))
        ]
        ends = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
        found = call(*rows, ends, max(lengths), window)
        row = PackedRow(ends, ends, None, ends, ends, np.empty((0, 4)))  # type: ignore[arg-type]
        parts = []
        for query, key, value in zip(*(x.float().split(lengths) for x in rows), strict=True):
            mask = row.band(len(query), window or len(query), device)
            query, key, value = (x.transpose(0, 1).unsqueeze(0) for x in (query, key, value))
            grouped = heads[0] != heads[1]
            part = scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=grouped)
            parts.append(part.squeeze(0).transpose(0, 1))
        expected = torch.cat(parts)
        weights = torch.cos(torch.arange(expected.numel(), device=device)).reshape(expected.shape)
        by_call, by_sdpa = (torch.autograd.grad(of, rows, weights.to(of.dtype)) for of in (found, expected))
    pairs = zip((found, *by_call), (expected, *by_sdpa), strict=True)
    return all(bool((a.float() - b.float()).norm() <= 0.02 * b.float().norm()) for a, b in pairs)


def _bucket(lengths: np.ndarray, call_cost: int) -> list[np.ndarray]:
    """Indices of sequences of similar length, longest first: a bucket takes the next shorter sequence while its padding
    costs less than a call, in pairs of tokens."""
    order = np.argsort(-lengths, kind="stable")
    starts, waste = [0], 0
    squares = (lengths[order] ** 2).tolist()
    for place, square in enumerate(squares):
        waste += squares[starts[-1]] - square
        if waste > call_cost:
            starts.append(place)
            waste = 0
    return np.split(order, starts[1:])


def _ranges(starts: Sequence[int] | np.ndarray, lengths: Sequence[int] | np.ndarray) -> np.ndarray:
    """start, start + 1, … of each, one after the other."""
    counts = np.asarray(lengths, dtype=np.int64)
    before = np.cumsum(counts) - counts
    ranges: np.ndarray = np.arange(counts.sum()) + np.repeat(np.asarray(starts, dtype=np.int64) - before, counts)
    return ranges


def _on(values: np.ndarray, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64)).to(device)


AttentionInterface.register(ATTENTION, packed_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
