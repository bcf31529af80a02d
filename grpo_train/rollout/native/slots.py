"""Keys and values of the completions in progress, in slots that are allocated once, and the attention that uses them.

A prompt is read in a packed row (:mod:`grpo_train.policy.packing`), and its keys and values are written to the slot of
each of its completions. A decoding step writes one position of each slot, in place. Nothing is ever moved: when a
completion ends, its slot is free for the next one.

Shape suffixes: S slots, B rows of a step, N tokens of a packed row, K written positions, W columns that a step looks
at, Q query heads, G key/value heads, D head dimension.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from grpo_train.policy.packing import PackedRow, packed_attention

ATTENTION = "sdpa_slots"
"""Name of our attention in transformers."""
CALL_COST = {"cpu": 2**8, "cuda": 2**18}
"""Cost of an attention call in positions of slots that it looks at, by device type."""


@dataclass(frozen=True)
class Prompts:
    """Where a packed row of prompts goes; all (K,) int64."""

    row: PackedRow
    token_K: Tensor
    """Index in the row."""
    slot_K: Tensor
    position_K: Tensor


@dataclass(frozen=True)
class Step:
    """The rows of a decoding step, in the order of their slots."""

    slot_B: Tensor
    position_B: Tensor
    """Position of the new token in its completion's sequence; it sees this one and those before."""
    ranges: Sequence[Range]
    """They contain the rows; an attention call each."""
    mask_S11W: Tensor
    """Of all slots; added to the scores."""
    is_dense: bool
    """Whether every slot of the ranges is a row, from the first one on."""


class Range(NamedTuple):
    """Neighboring slots of similar length."""

    start: int
    stop: int
    width: int
    """Positions to look at."""


@dataclass
class Slots:
    """Keys and values of each layer."""

    count: int
    length: int
    """Positions of a slot."""
    layers: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Keys and values by layer, each (S, G, length, D)."""
    work: Prompts | Step | None = None
    """What the forward pass in progress does."""

    def attend(self, module: Any, query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> Tensor:
        """Write keys and values (1 or B, G, N or 1, D), and attend; returns (1 or B, N or 1, Q, D)."""
        keys, values = self._layer(int(module.layer_idx), key, value)
        if isinstance(self.work, Prompts):
            at = (self.work.slot_K, self.work.position_K)
            for cache, new in ((keys, key), (values, value)):
                cache.transpose(1, 2)[at] = new[0].transpose(0, 1)[self.work.token_K]
            return packed_attention(module, query, key, value, None, scaling=scale, packed_row=self.work.row)[0]
        assert self.work is not None
        step, groups = self.work, key.shape[1]
        at = (step.slot_B, step.position_B)
        for cache, new in ((keys, key), (values, value)):
            cache.transpose(1, 2)[at] = new[:, :, 0]
        # The queries that share keys take the place of several query positions.
        query_SGRD = query.unflatten(1, (groups, -1)).squeeze(3)
        if not step.is_dense:
            every_SGRD = query_SGRD.new_zeros((self.count, *query_SGRD.shape[1:]))
            query_SGRD = every_SGRD.index_copy_(0, step.slot_B, query_SGRD)
        found_SGRD = torch.empty_like(query_SGRD)
        for start, stop, width in step.ranges:
            found_SGRD[start:stop] = scaled_dot_product_attention(
                query_SGRD[start:stop],
                keys[start:stop, :, :width],
                values[start:stop, :, :width],
                step.mask_S11W[start:stop, :, :, :width],
                scale=scale,
            )
        found_BGRD = found_SGRD if step.is_dense else found_SGRD[step.slot_B]
        return found_BGRD.flatten(1, 2).unsqueeze(1)

    def _layer(self, index: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        if index not in self.layers:
            # Zeros: a masked position contributes 0 times its value, which must not be NaN.
            made = [x.new_zeros((self.count, x.shape[1], self.length, x.shape[3])) for x in (key, value)]
            self.layers[index] = (made[0], made[1])
        return self.layers[index]


def step_of(
    slot_B: Tensor, position_S: Tensor, ranges: Sequence[Range], dtype: torch.dtype, *, is_dense: bool = False
) -> Step:
    """A step of the slots in use; the arguments are those of :class:`Step`, ``position_S`` is of all slots."""
    column_W = torch.arange(max(one.width for one in ranges), device=slot_B.device)
    hidden_SW = column_W > position_S.unsqueeze(1)
    mask_SW = torch.zeros(hidden_SW.shape, dtype=dtype, device=slot_B.device).masked_fill_(hidden_SW, -torch.inf)
    return Step(slot_B, position_S[slot_B], ranges, mask_SW[:, None, None], is_dense)


def ranges_of(needed: Mapping[int, int], cost: int) -> list[Range]:
    """Ranges that contain the slots: what is looked at in vain, up to ``cost`` positions, is cheaper than a call."""
    ranges: list[Range] = []
    wasted = 0
    for slot, width in needed.items():
        if ranges:
            last = ranges[-1]
            both = Range(last.start, slot + 1, max(last.width, width))
            more = (both.stop - both.start) * both.width - (last.stop - last.start) * last.width - width
            if wasted + more <= cost:
                ranges[-1], wasted = both, wasted + more
                continue
        ranges.append(Range(slot, slot + 1, width))
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
    return slots.attend(module, query, key, value, scaling), None


AttentionInterface.register(ATTENTION, slots_attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
