"""Keys and values of the completions in progress, in slots that are allocated once, and the attention that uses them.

A prompt is read in a packed row (:mod:`grpo_train.policy.packing`). Its keys and values are written either to the slot
of each of its completions, or once to an entry that these completions share: then attention to the prompt and to the
completion are computed apart and joined (as in Juravsky et al. 2024, "Hydragen", equation 6). A decoding step writes
one position of each slot, in place. Nothing is ever moved: when a completion ends, its slot is free for the next one.

Shape suffixes: S slots, B rows of a step, N tokens of a packed row, K written positions, W columns that a step looks
at, E entries of prompts, P positions of an entry, L lanes (places for the rows of each entry), Q query heads, G
key/value heads, R query heads that share a key head, D head dimension.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from grpo_train.policy.packing import PackedRow, packed_attention
from grpo_train.rollout.native.flash import Spans, flash_attention, spans_of

ATTENTION = "sdpa_slots"
"""Name of our attention in transformers."""
ATTENTION_APART = "sdpa_slots_apart"
"""The same for compiled layers: it is not compiled, as it depends on more than shapes."""
ATTENTION_INSIDE = "sdpa_slots_inside"
"""FlashAttention of steps, compiled with its layer: it depends on tensors alone."""
LAYER = "slots_layer"
"""Attribute of an attention module with its part of :attr:`Slots.layers`: code that looked it up by number would be
compiled for each layer."""
CALL_COST = {"cpu": 2**9, "cuda": 2**18}
"""Cost of an attention call in positions of slots that it looks at, by device type."""
SHARED_CALL_COST = {"cpu": 2**11, "cuda": 2**18}
"""The same for entries, in positions times rows: several rows cost less than as many slots."""


@dataclass(frozen=True)
class Prompts:
    """Where a packed row of prompts goes; all (K,) int64."""

    row: PackedRow
    token_K: Tensor
    """Index in the row."""
    place_K: Tensor
    """Slot, or entry of prompts that are shared."""
    position_K: Tensor


class LengthRange(NamedTuple):
    """Neighboring slots or entries of similar length."""

    start: int
    stop: int
    width: int
    """Positions to look at."""
    rows: int = 1
    """Rows of each."""

    @property
    def work(self) -> int:
        """Positions that its rows look at."""
        return (self.stop - self.start) * self.width * self.rows


@dataclass(frozen=True)
class Shared:
    """The prompts of a step's rows."""

    lane_B: Tensor
    """The place of each row: each range has ``rows`` lanes for each of its entries."""
    ranges: Sequence[LengthRange]
    """Entries; an attention call each."""
    mask_E11P: Tensor
    """Of all entries; added to the scores."""
    is_dense: bool = False
    """Whether the rows are in the order of the lanes, and fill them."""
    spans: Spans | None = None
    """Of all entries, for all lanes."""


@dataclass(frozen=True)
class DecodingStep:
    """The rows of a decoding step, in the order of their slots."""

    slot_B: Tensor
    position_B: Tensor
    """Position of the new token in its slot; it sees this one and those before."""
    ranges: Sequence[LengthRange]
    """Slots; they contain the rows; an attention call each."""
    mask_S11W: Tensor
    """Of all slots; added to the scores."""
    is_dense: bool
    """Whether every slot of the ranges is a row, from the first one on."""
    shared: Shared | None = None
    """None where each slot has its own copy of the prompt."""
    spans: Spans | None = None
    """Of the rows' slots; None = the kernels of sdpa, range by range."""


@dataclass
class Slots:
    """Keys and values of each layer."""

    count: int
    length: int
    """Positions of a slot."""
    entries: int = 0
    """Prompts that completions share; 0 = slots have their own copies."""
    prompt_length: int = 0
    """Positions of an entry."""
    is_flash: bool = False
    """Whether steps attend by FlashAttention."""
    layers: dict[int, tuple[Tensor, Tensor, Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values by layer, (S, G, length, D) each, then those of the entries, (E, G, prompt_length, D) each; for
    FlashAttention (S, length, G, D) and (E, prompt_length, G, D)."""
    work: Prompts | DecodingStep | None = None
    """What the forward pass in progress does."""

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Write keys and values (1 or B, G, N or 1, D), and attend; returns (1 or B, N or 1, Q, D)."""
        layer = self._layer(int(module.layer_idx), key, value)
        keys, values, prompt_keys, prompt_values = layer
        if isinstance(self.work, Prompts):
            at = (self.work.place_K, self.work.position_K)
            caches = (prompt_keys, prompt_values) if self.entries else (keys, values)
            for cache, new in zip(caches, (key, value), strict=True):
                by_position = cache if self.is_flash else cache.transpose(1, 2)
                by_position[at] = new[0].transpose(0, 1)[self.work.token_K]
            return packed_attention(module, query, key, value, None, scaling=scale, packed_row=self.work.row)[0]
        assert self.work is not None
        if self.work.spans is not None:
            return _by_spans(self.work, query, key, value, layer, scale)
        step, groups = self.work, key.shape[1]
        at = (step.slot_B, step.position_B)
        for cache, new in ((keys, key), (values, value)):
            cache.transpose(1, 2)[at] = new[:, :, 0]
        # The queries that share keys take the place of several query positions.
        query_BGRD = query.unflatten(1, (groups, -1)).squeeze(3)
        own_BGRD, own_BGR = self._own(step, query_BGRD, keys, values, scale)
        if step.shared is None or own_BGR is None:
            return own_BGRD.flatten(1, 2).unsqueeze(1)
        prompt_BGRD, prompt_BGR = _of_prompts(step.shared, query_BGRD, prompt_keys, prompt_values, scale)
        return _joined(own_BGRD, own_BGR, prompt_BGRD, prompt_BGR).flatten(1, 2).unsqueeze(1)

    def _own(
        self, step: DecodingStep, query_BGRD: Tensor, keys: Tensor, values: Tensor, scale: float | None
    ) -> tuple[Tensor, Tensor | None]:
        """Attention to the slots of rows; where prompts are shared, also the logarithms of its sums (B, G, R)."""
        query_SGRD = query_BGRD
        if step.is_dense and step.shared is not None and len(step.ranges) == 1:
            count, width = len(query_BGRD), step.ranges[0].width
            mask = step.mask_S11W[:count, :, :, :width]
            return attention_and_sums(query_BGRD, keys[:count, :, :width], values[:count, :, :width], mask, scale)
        if not step.is_dense:
            query_SGRD = query_BGRD.new_zeros((self.count, *query_BGRD.shape[1:]))
            query_SGRD.index_copy_(0, step.slot_B, query_BGRD)
        found_SGRD = torch.empty_like(query_SGRD)
        sum_SGR = None if step.shared is None else _empty_sums(query_SGRD)
        for start, stop, width, _ in step.ranges:
            at = slice(start, stop)
            mask = step.mask_S11W[at, :, :, :width]
            inputs = (query_SGRD[at], keys[at, :, :width], values[at, :, :width], mask)
            if sum_SGR is None:
                found_SGRD[at] = scaled_dot_product_attention(*inputs, scale=scale)
            else:
                found_SGRD[at], sum_SGR[at] = attention_and_sums(*inputs, scale)
        if step.is_dense:
            return found_SGRD, sum_SGR
        return found_SGRD[step.slot_B], None if sum_SGR is None else sum_SGR[step.slot_B]

    def _layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        if index not in self.layers:
            # Zeros: a masked position contributes 0 times its value, which must not be NaN.
            sizes = ((self.count, self.length), (self.entries, self.prompt_length))
            made = []
            for (n, length), x in itertools.product(sizes, (key, value)):
                heads, width = x.shape[1], x.shape[3]
                shape = (n, length, heads, width) if self.is_flash else (n, heads, length, width)
                made.append(x.new_zeros(shape))
            self.layers[index] = (made[0], made[1], made[2], made[3])
        return self.layers[index]


def _by_spans(
    step: DecodingStep, query: Tensor, key: Tensor, value: Tensor, layer: Sequence[Tensor], scale: float | None
) -> Tensor:
    """As :meth:`Slots.attend`, for a step by FlashAttention."""
    keys, values, prompt_keys, prompt_values = layer
    keys[step.slot_B, step.position_B] = key[:, :, 0]
    values[step.slot_B, step.position_B] = value[:, :, 0]
    assert step.spans is not None
    query_BQD = query.squeeze(2)
    own_BQD, own_BQ = flash_attention(query_BQD, keys, values, step.spans, scale)
    if step.shared is None or step.shared.spans is None:
        return own_BQD.unsqueeze(1)
    lane_B, spans = step.shared.lane_B, step.shared.spans
    lanes = len(spans.used_N) * spans.queries
    query_LQD = query_BQD.new_zeros((lanes, *query_BQD.shape[1:])).index_copy_(0, lane_B, query_BQD)
    prompt_LQD, prompt_LQ = flash_attention(query_LQD, prompt_keys, prompt_values, spans, scale)
    return _joined(own_BQD, own_BQ, prompt_LQD[lane_B], prompt_LQ[lane_B]).unsqueeze(1)


def _of_prompts(
    shared: Shared, query_BGRD: Tensor, keys: Tensor, values: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention of rows to their prompts (B, G, R, D), and the logarithms of its sums (B, G, R).

    The rows of an entry take the place of further query positions, so that its keys are read once for all of them.
    """
    query_LGRD = query_BGRD
    if not shared.is_dense:
        query_LGRD = query_BGRD.new_zeros((lane_count(shared.ranges), *query_BGRD.shape[1:]))
        query_LGRD.index_copy_(0, shared.lane_B, query_BGRD)
    first, parts = 0, []
    for start, stop, width, rows in shared.ranges:
        count = stop - start
        query = query_LGRD[first : first + count * rows].unflatten(0, (count, rows)).transpose(1, 2).flatten(2, 3)
        first += count * rows
        at = slice(start, stop)
        mask = shared.mask_E11P[at, :, :, :width]
        found = attention_and_sums(query, keys[at, :, :width], values[at, :, :width], mask, scale)
        parts.append([x.unflatten(2, (rows, -1)).transpose(1, 2).flatten(0, 1) for x in found])
    found_LGRD, sum_LGR = parts[0] if len(parts) == 1 else (torch.cat(each) for each in zip(*parts, strict=True))
    return (found_LGRD, sum_LGR) if shared.is_dense else (found_LGRD[shared.lane_B], sum_LGR[shared.lane_B])


def _joined(own: Tensor, own_sums: Tensor, prompt: Tensor, prompt_sums: Tensor) -> Tensor:
    """Attention to both, from that to each (…, D) and the logarithms of its sums (…)."""
    share = torch.sigmoid(own_sums - prompt_sums).unsqueeze(-1).to(own.dtype)
    return torch.lerp(prompt, own, share)


def lane_count(ranges: Sequence[LengthRange]) -> int:
    """Lanes of :class:`Shared`."""
    return sum((each.stop - each.start) * each.rows for each in ranges)


def attention_and_sums(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Attention (N, G, R, D), and the logarithm of the sum of its exponentiated scores (N, G, R).

    torch's public function returns the first only; these are the kernels that it calls.
    """
    if query.device.type == "cpu":
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        found, sums = attend(query, keys, values, 0.0, False, attn_mask=mask, scale=scale)
        return found, sums
    bias = mask.expand(*query.shape[:3], -1)
    efficient = torch.ops.aten._scaled_dot_product_efficient_attention
    found, sums, *_ = efficient(query, keys, values, bias, True, 0.0, False, scale=scale)
    return found, sums[:, :, : query.shape[2]]  # padded to a multiple of 32


def _empty_sums(query: Tensor) -> Tensor:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return torch.empty(query.shape[:3], dtype=dtype, device=query.device)


def step_of(
    slot_B: Tensor,
    position_S: Tensor,
    ranges: Sequence[LengthRange],
    dtype: torch.dtype,
    *,
    is_dense: bool = False,
    shared: Shared | None = None,
    flash_length: int = 0,
) -> DecodingStep:
    """A step of the slots in use; the arguments are those of :class:`DecodingStep`, ``position_S`` is of all slots.

    ``flash_length``: length of a slot, for FlashAttention; 0 = by ranges.
    """
    if flash_length:
        position_B = position_S[slot_B]
        spans = spans_of(slot_B, position_B + 1, flash_length)
        return DecodingStep(slot_B, position_B, [], position_S.new_empty(0), is_dense=False, shared=shared, spans=spans)
    width = max(one.width for one in ranges)
    return DecodingStep(
        slot_B, position_S[slot_B], ranges, mask_of(position_S + 1, width, dtype), is_dense=is_dense, shared=shared
    )


def mask_of(length_N: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """(N, 1, 1, width): 0 for the first positions, as many as ``length_N`` says, -inf for the others."""
    hidden = torch.arange(width, device=length_N.device) >= length_N.unsqueeze(1)
    mask = torch.zeros(hidden.shape, dtype=dtype, device=length_N.device).masked_fill_(hidden, -torch.inf)
    return mask[:, None, None]


def ranges_of(needed: Mapping[int, int], cost: int, rows: Mapping[int, int] | None = None) -> list[LengthRange]:
    """Ranges that contain the slots or entries: what is looked at in vain, up to ``cost`` positions, is cheaper than a
    call.

    Args:
        needed: positions to look at.
        rows: of each entry; None = 1.
    """
    ranges: list[LengthRange] = []
    wasted = 0
    for place, width in needed.items():
        own = LengthRange(place, place + 1, width, 1 if rows is None else rows[place])
        if ranges:
            last = ranges[-1]
            both = LengthRange(last.start, own.stop, max(last.width, width), max(last.rows, own.rows))
            more = both.work - last.work - own.work
            if wasted + more <= cost:
                ranges[-1], wasted = both, wasted + more
                continue
        ranges.append(own)
        wasted = 0
    return ranges


def slots_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    slots: Slots | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention over :class:`Slots`, of which ``slots.work`` says what to do.

    Raises NotImplementedError for anything but plain causal attention.
    """
    unknown = ("sliding_window", "softcap", "position_bias", "s_aux", "head_mask")
    if found := [name for name in unknown if kwargs.get(name) is not None]:
        raise NotImplementedError(f"its attention has {', '.join(found)}")
    assert slots is not None
    layer = getattr(module, LAYER, None)
    if layer is not None and isinstance(slots.work, DecodingStep):
        return _by_spans(slots.work, query, key, value, layer, scaling), None
    return slots.attend(module, query, key, value, scaling), None


AttentionInterface.register(ATTENTION, slots_attention)
AttentionInterface.register(ATTENTION_APART, torch.compiler.disable(slots_attention))
AttentionInterface.register(ATTENTION_INSIDE, slots_attention)
for name in (ATTENTION, ATTENTION_APART, ATTENTION_INSIDE):
    AttentionMaskInterface.register(name, sdpa_mask)
