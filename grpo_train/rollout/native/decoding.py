"""Completions in progress: which prompt is in which slot, the next token of each, and the looks of the host.

The host looks every few tokens, at fixed counts. What was drawn beyond the end of a completion is cut off then, and its
slot takes the next prompt.

Shape suffixes: S slots, B rows of a step, E entries of shared prompts, U unique prompts, T token budget, R recent
tokens, V vocabulary. K columns of the tokens of a look: the last one of the look before (or the first of a new
completion), then those drawn since.
"""

from __future__ import annotations

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from grpo_train.policy.completion import Completion
from grpo_train.policy.locate import PolicyError
from grpo_train.policy.packing import pack
from grpo_train.rollout.draw import NO_TOKEN, Draw, Ends, uniforms
from grpo_train.rollout.native import graphs as recorded
from grpo_train.rollout.native.entries import Entries, lanes_of
from grpo_train.rollout.native.flash import Spans, spans_of
from grpo_train.rollout.native.graphs import StepGraphs
from grpo_train.rollout.native.slots import (
    CALL_COST,
    SHARED_CALL_COST,
    LengthRange,
    Prompts,
    Shared,
    Slots,
    lane_count,
    mask_of,
    ranges_of,
    step_of,
)
from grpo_train.rollout.native.weights import FrozenCopy

REFILL_FRACTION = 8
"""Waiting completions start when an eighth of the slots is free: reading prompts is a pass of its own."""
PREFILL_TOKENS = 16384
"""Prompt tokens that are read at once; at least one prompt."""
WIDTH_STEP = 32
"""Granularity of the positions that a step looks at."""

OnToken = Callable[[int, int, int], None]
"""See :meth:`grpo_train.rollout.RolloutBackend.generate`."""


@dataclass
class _Row:
    """A completion in progress, as far as the host has seen it."""

    index: int
    prompt: tuple[int, ...]
    ids: list[int] = field(default_factory=list)
    logps: list[float] = field(default_factory=list)
    entry: int = 0
    """Of a shared prompt."""


class Decoding:
    """Slots and the state of the completions in them, for one call of ``generate`` after another.

    Recorded steps refer to the addresses of these tensors: nothing that they use is ever made anew.
    """

    def __init__(
        self,
        copy: FrozenCopy,
        slots: Slots,
        draw: Draw,
        ends: Ends,
        device: torch.device,
        *,
        budget: int,
        every: int,
        most: int,
        graphs: StepGraphs | None = None,
    ) -> None:
        """Make the state of ``slots``.

        Args:
            budget: tokens of a completion, at most.
            every: tokens between two looks.
            most: completions that share a prompt, at most.
            graphs: record steps; the last slot is the one of rows that fill up a recorded shape.
        """
        self._copy, self._slots, self.draw, self._ends, self._device = copy, slots, draw, ends, device
        self._every, self._most, self.graphs = every, most, graphs
        self._budget = self._usable = 0
        """Tokens of a completion, and slots for completions, in this call."""
        self._rows: dict[int, _Row] = {}
        """By slot."""
        self._entries: Entries | None = None
        """None = each slot has its own copy of the prompt."""
        count, columns = slots.count, every + 1

        def state(*shape: int, dtype: torch.dtype = torch.long, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self._token_S, self._position_S, self._count_S = state(count), state(count), state(count)
        """The last token, not yet processed; its position; the number of tokens drawn."""
        self._offset_S = state(count)
        """Positions before the first one of a slot: the length of a shared prompt."""
        self._drawn_SK, self._value_SK = state(count, columns), state(count, columns, dtype=torch.float32)
        """Tokens of a look, and their log-probabilities (or, without any, a logit)."""
        self._recent_SR = state(count, ends.recent, value=NO_TOKEN)
        """Tokens before those of the look."""
        self._uniform_ST = state(count, budget + columns, dtype=torch.float64) if draw.is_random else None
        self._column_1 = state(1)
        """Column of the next token of a look."""
        self._dtype: torch.dtype = copy.model.dtype
        self._length_E = state(slots.entries, value=1, dtype=torch.int32)
        """Tokens of the shared prompts."""
        self._mask_E11P = mask_of(self._length_E, slots.prompt_length, self._dtype)
        """What rows see of a shared prompt."""
        self._first_EV: Tensor | None = None
        """Logits of the first token after a shared prompt."""
        self._prompt_spans: Spans | None = None
        if slots.is_flash and slots.entries:
            entry_E = torch.arange(slots.entries, device=device)
            self._prompt_spans = spans_of(entry_E, self._length_E, slots.prompt_length, most)
        self._slot_B = state(0)
        """Slot of each row of a step: those in use, ascending, then the last one for rows that fill up a shape."""
        self._in_use: list[tuple[int, int]] = []
        """Slots and entries of the rows."""
        self._ranges: list[LengthRange] = []
        self._shared: Shared | None = None
        self._is_dense = False
        self._slack = -1
        """Tokens until a row needs more than its range has; -1 = the rows have changed."""
        self._places_by_rows: dict[int, tuple[Tensor, Tensor]] = {}
        """Slots and lanes of the rows of recorded steps, which stay where they are, by their number."""

    @property
    def bytes(self) -> int:
        """Memory of the tensors, without that of recorded steps."""
        values = itertools.chain(vars(self).values(), *self._slots.layers.values())
        return sum(each.numel() * each.element_size() for each in values if isinstance(each, Tensor))

    def run(
        self,
        prompts: Mapping[int, tuple[int, ...]],
        seeds: Mapping[int, int],
        budget: int,
        size: int,
        on_token: OnToken | None = None,
    ) -> Iterator[tuple[int, Completion]]:
        """Each completion as it ends, with its index: one call of ``generate``, whatever an earlier one left.

        ``budget``: tokens of a completion; ``size``: completions at once. Raises PolicyError for NaN.
        """
        waiting = deque(prompts.items())
        self._budget, self._usable, self._rows, self._in_use, self._slack = budget, size, {}, [], -1
        for state in (self._token_S, self._position_S, self._count_S, self._offset_S):
            state.zero_()
        if self._slots.entries:  # the weights may have changed: each prompt is read again
            self._entries = Entries(self._slots.entries - (self.graphs is not None))
            self._length_E.fill_(1)
            self._mask_E11P.copy_(mask_of(self._length_E, self._slots.prompt_length, self._dtype))
        while waiting or self._rows:
            free = [slot for slot in range(self._usable) if slot not in self._rows]
            fresh: list[int] = []
            if waiting and (not self._rows or len(free) >= max(1, self._usable // REFILL_FRACTION)):
                fresh = free[: len(waiting)]
                self._rows |= {slot: _Row(*waiting.popleft()) for slot in fresh}
                self._slack = -1
                self._start(fresh, seeds)
            self._plan()
            for _ in range(self._every):
                if self.graphs is None:
                    self._step()
                else:
                    self.graphs.run((len(self._slot_B), self._ranges[0].width), self._step)
            yield from self._look(set(fresh), on_token)
            if fresh:  # their first token came besides those of the steps
                self._slack = -1

    def _start(self, fresh: Sequence[int], seeds: Mapping[int, int]) -> None:
        """Read the prompts of slots, each once, and draw the first token of each."""
        if self._uniform_ST is not None:
            drawn = uniforms([seeds[self._rows[slot].index] for slot in fresh], self._budget)
            missing = self._uniform_ST.shape[1] - self._budget
            self._uniform_ST[self._on_device(fresh)] = pad(drawn, (0, missing)).to(self._device)
        prompts = {slot: self._rows[slot].prompt for slot in fresh}
        if self._entries is None:
            for chunk in _chunks(prompts):
                self._begin(chunk, read_prompts(self._copy, self._slots, chunk, self._device))
            return
        entries, unread = self._entries.take(list(prompts.values()))
        for chunk in _chunks(unread):
            logits_UV = read_prompts(self._copy, self._slots, chunk, self._device)
            if self._first_EV is None:
                self._first_EV = logits_UV.new_empty((self._slots.entries, logits_UV.shape[1]))
            entry_U, length_U = self._on_device(list(chunk)), self._on_device([len(each) for each in chunk.values()])
            self._first_EV[entry_U] = logits_UV
            self._length_E[entry_U] = length_U.to(torch.int32)
            self._mask_E11P[entry_U] = mask_of(length_U, self._slots.prompt_length, self._dtype)
        for slot, entry in zip(fresh, entries, strict=True):
            self._rows[slot].entry = entry
        assert self._first_EV is not None
        self._begin(prompts, self._first_EV[self._on_device(entries)])

    def _begin(self, prompts: Mapping[int, tuple[int, ...]], logits_BV: Tensor) -> None:
        """Draw the first token of slots."""
        slot_B = self._on_device(list(prompts))
        length_B = self._on_device([len(prompt) for prompt in prompts.values()])
        self._position_S[slot_B] = length_B
        self._offset_S[slot_B] = 0 if self._entries is None else length_B
        self._count_S[slot_B] = 0
        self._recent_SR[slot_B] = NO_TOKEN
        self._record(slot_B, logits_BV, 0)

    def _plan(self) -> None:
        """Choose the rows and the ranges of the steps until the next look."""
        self._column_1.fill_(1)
        if self._slack >= 0:
            return None
        rows = sorted(self._rows)
        ends = {slot: self._end(self._rows[slot]) for slot in rows}
        needed = {slot: min(self._slots.length, _rounded(end)) for slot, end in ends.items()}
        if self.graphs is not None or self._slots.is_flash:
            return self._plan_shape(rows, max(needed.values()))
        self._slack = min(needed[slot] - ends[slot] for slot in rows)
        kind = self._device.type if self._device.type in CALL_COST else "cuda"
        self._ranges = ranges_of(needed, CALL_COST[kind])
        self._is_dense = rows == list(range(len(rows)))
        in_use = [(slot, self._rows[slot].entry) for slot in rows]
        if in_use == self._in_use:
            return None
        self._in_use, self._slot_B = in_use, self._on_device(rows)
        if self._entries is not None:
            counts = Counter(entry for _, entry in in_use)
            widths = {self._rows[slot].entry: _rounded(len(self._rows[slot].prompt)) for slot in rows}
            ranges = ranges_of(dict(sorted(widths.items())), SHARED_CALL_COST[kind], counts)
            lanes = lanes_of([entry for _, entry in in_use], ranges)
            self._shared = Shared(
                self._on_device(lanes), ranges, self._mask_E11P, is_dense=lanes == list(range(lane_count(ranges)))
            )
        return None

    def _plan_shape(self, rows: list[int], width: int) -> None:
        """As :meth:`_plan`, with few shapes: recorded steps have a power of two of rows; all have all entries."""
        width = self._slots.length if self._slots.is_flash else -(-width // recorded.WIDTH_STEP) * recorded.WIDTH_STEP
        self._ranges = [LengthRange(0, self._slots.count, min(self._slots.length, width))]
        size = len(rows) if self.graphs is None else recorded.graph_rows(len(rows), self._usable)
        every = [LengthRange(0, self._slots.entries, self._slots.prompt_length, self._most)]
        fill = size - len(rows)
        slots = self._on_device([*rows, *[self._slots.count - 1] * fill])
        lanes = slots
        if self._entries is not None:
            unused = (self._slots.entries - 1) * self._most
            lanes = self._on_device([*lanes_of([self._rows[slot].entry for slot in rows], every), *[unused] * fill])
        self._slot_B, lane_B = self._places_by_rows.setdefault(size, (slots, lanes))
        self._slot_B.copy_(slots)
        if self._entries is not None:
            lane_B.copy_(lanes)
            self._shared = Shared(lane_B, every, self._mask_E11P, spans=self._prompt_spans)

    def _step(self) -> None:
        """Draw the next token of each row. What changes from step to step is in tensors that stay where they are."""
        slot_B = self._slot_B
        own_S = self._position_S if self._entries is None else self._position_S - self._offset_S
        work = step_of(
            slot_B, own_S, self._ranges, self._dtype,
            is_dense=self._is_dense, shared=self._shared, flash_length=self._slots.length * self._slots.is_flash,
        )  # fmt: skip
        position_B = self._position_S[slot_B]
        ids_B1 = self._token_S[slot_B].unsqueeze(1)
        logits_BV = self._copy.logits(self._slots, work, ids_B1, position_B.unsqueeze(1), 1)[:, -1]
        self._position_S[slot_B] = position_B + 1
        self._record(slot_B, logits_BV, self._column_1)
        self._column_1 += 1
        if self.graphs is not None:  # rows that fill up stay at their first token
            self._position_S[-1:].zero_()
            self._count_S[-1:].zero_()

    def _record(self, slot_B: Tensor, logits_BV: Tensor, column: Tensor | int) -> None:
        count_B = self._count_S[slot_B]
        token_B, logp_B = self.draw(logits_BV, None if self._uniform_ST is None else self._uniform_ST[slot_B, count_B])
        self._token_S[slot_B] = token_B
        self._count_S[slot_B] = count_B + 1
        self._drawn_SK[slot_B, column] = token_B
        self._value_SK[slot_B, column] = logits_BV[:, 0].float() if logp_B is None else logp_B

    def _look(self, fresh: set[int], on_token: OnToken | None) -> Iterator[tuple[int, Completion]]:
        """Take over what was drawn since the last look; completions that ended leave their slots."""
        slot_B, recent = self._slot_B[: len(self._rows)], self._ends.recent
        drawn_BK = self._drawn_SK[slot_B]
        known = torch.cat([self._recent_SR[slot_B], drawn_BK], dim=1)
        windows = known[:, 1:].unfold(1, recent, 1).flatten(0, 1) if recent else drawn_BK.flatten().unsqueeze(1)
        ended_BK = self._ends(drawn_BK.flatten(), windows).view(drawn_BK.shape)
        report = torch.stack([drawn_BK.double(), self._value_SK[slot_B].double(), ended_BK.double()])
        last = drawn_BK.shape[1] - 1
        self._recent_SR[slot_B] = known[:, last : last + recent]
        self._drawn_SK[slot_B, 0] = drawn_BK[:, last]
        tokens, values, ends = report.cpu().numpy()  # one transfer
        drawn, logps = tokens.astype(int).tolist(), values.tolist()
        done = []
        for number, slot in enumerate(sorted(self._rows)):
            row, first = self._rows[slot], 0 if slot in fresh else 1
            room = self._budget - len(row.ids)
            found = (int(place) + 1 for place in np.flatnonzero(ends[number, first:]) if place < room)
            ended = next(
                (n for n in found if self._ends.counts(row.prompt, row.ids + drawn[number][first : first + n])), None
            )
            has_ended = ended is not None
            stop = first + min(room, last + 1 - first, last + 1 if ended is None else ended)
            if np.isnan(values[number, first:stop]).any():
                raise PolicyError("logits contain NaN or Inf: the weights are damaged or overflow in their dtype")
            if on_token is not None:
                for place, token in enumerate(drawn[number][first:stop], len(row.ids)):
                    on_token(row.index, place, token)
            row.ids += drawn[number][first:stop]
            if self.draw.is_random:
                row.logps += logps[number][first:stop]
            if has_ended or len(row.ids) == self._budget:
                done.append((row.index, Completion(row.prompt, tuple(row.ids), tuple(row.logps), has_ended)))
                del self._rows[slot]
                if self._entries is not None:
                    self._entries.leave(row.entry)
        self._slack = -1 if done else self._slack - self._every
        yield from done

    def _end(self, row: _Row) -> int:
        """Positions that the steps until the next look need."""
        before = len(row.prompt) if self._entries is None else 0
        return before + len(row.ids) + self._every + 1

    def _on_device(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device)


def _rounded(width: int) -> int:
    return -(-width // WIDTH_STEP) * WIDTH_STEP


def read_prompts(
    copy: FrozenCopy, slots: Slots, prompts: Mapping[int, tuple[int, ...]], device: torch.device
) -> Tensor:
    """Read the prompts of slots (or of entries, where ``slots`` has some), equal ones once, into these; returns the
    logits (B, V) of their next tokens."""
    unique = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts.values()))}
    # The last token of a completion predicts nothing and is left out of the row.
    row = pack([Completion(prompt, (0,), (0.0,), False) for prompt in unique], device, 1, share_prompts=True)
    lengths = np.array([len(prompt) for prompt in prompts.values()])
    number_B = np.array([unique[prompt] for prompt in prompts.values()])
    position_K = np.concatenate([np.arange(length) for length in lengths])
    start_K = np.repeat(row.sequences[number_B, 0], lengths)
    token_K, place_K = start_K + position_K, np.repeat(np.array(list(prompts)), lengths)
    work = Prompts(row, *(torch.from_numpy(each).to(device) for each in (token_K, place_K, position_K)))
    logits_UV = copy.logits(slots, work, row.input_ids, row.position_ids, row.predictors.index)[0]
    return logits_UV[torch.from_numpy(number_B).to(device)] if len(unique) < len(prompts) else logits_UV


def _chunks(prompts: Mapping[int, tuple[int, ...]]) -> Iterator[dict[int, tuple[int, ...]]]:
    """Slots (or entries) and prompts whose different prompts have :data:`PREFILL_TOKENS` tokens or less."""
    chunk: dict[int, tuple[int, ...]] = {}
    tokens, seen = 0, set[tuple[int, ...]]()
    for slot, prompt in prompts.items():
        new = 0 if prompt in seen else len(prompt)
        if chunk and new and tokens + new > PREFILL_TOKENS:
            yield chunk
            chunk, tokens, seen, new = {}, 0, set(), len(prompt)
        chunk[slot] = prompt
        seen.add(prompt)
        tokens += new
    if chunk:
        yield chunk
