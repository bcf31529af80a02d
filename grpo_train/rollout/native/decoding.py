"""Completions in progress: which prompt is in which slot, the next token of each, and the looks of the host.

The host looks every few tokens, at fixed counts. What was drawn beyond the end of a completion is cut off then, and its
slot takes the next prompt.

Shape suffixes: S slots, B rows of a step, U unique prompts, T token budget, R recent tokens, V vocabulary. K columns of
the tokens of a look: the last one of the look before (or the first of a new completion), then those drawn since.
"""

from __future__ import annotations

from collections import deque
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
from grpo_train.rollout.native.graphs import StepGraphs
from grpo_train.rollout.native.slots import CALL_COST, Prompts, Range, Slots, ranges_of, step_of
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


class Decoding:
    """One call of ``generate``."""

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
        graphs: StepGraphs | None = None,
    ) -> None:
        """``budget``: tokens of a completion; ``every``: tokens between two looks.

        With ``graphs``, steps are recorded, and the last slot is the one of rows that fill up a recorded shape.
        """
        self._copy, self._slots, self._draw, self._ends, self._device = copy, slots, draw, ends, device
        self._budget, self._every, self._graphs = budget, every, graphs
        self._usable = slots.count - (graphs is not None)
        """Slots for completions."""
        self._rows: dict[int, _Row] = {}
        """By slot."""
        count, columns = slots.count, every + 1

        def state(*shape: int, dtype: torch.dtype = torch.long, value: int = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self._token_S, self._position_S, self._count_S = state(count), state(count), state(count)
        """The last token, not yet processed; its position; the number of tokens drawn."""
        self._drawn_SK, self._value_SK = state(count, columns), state(count, columns, dtype=torch.float32)
        """Tokens of a look, and their log-probabilities (or, without any, a logit)."""
        self._recent_SR = state(count, ends.recent, value=NO_TOKEN)
        """Tokens before those of the look."""
        self._uniform_ST = state(count, budget + columns, dtype=torch.float64) if draw.is_random else None
        self._column_1 = state(1)
        """Column of the next token of a look."""
        self._dtype = torch.float32
        self._slot_B = state(0)
        """Slot of each row of a step: those in use, ascending, then the last one for rows that fill up a shape."""
        self._in_use: list[int] = []
        self._ranges: list[Range] = []
        self._is_dense = False
        self._slots_by_rows: dict[int, Tensor] = {}
        """``_slot_B`` of recorded steps, which stays where it is, by its length."""

    def run(
        self, prompts: Mapping[int, tuple[int, ...]], seeds: Mapping[int, int], on_token: OnToken | None = None
    ) -> Iterator[tuple[int, Completion]]:
        """Each completion as it ends, with its index. Raises PolicyError for NaN."""
        waiting = deque(prompts.items())
        while waiting or self._rows:
            free = [slot for slot in range(self._usable) if slot not in self._rows]
            fresh: list[int] = []
            if waiting and (not self._rows or len(free) >= max(1, self._usable // REFILL_FRACTION)):
                fresh = free[: len(waiting)]
                self._rows |= {slot: _Row(*waiting.popleft()) for slot in fresh}
                self._start(fresh, seeds)
            self._plan()
            for _ in range(self._every):
                if self._graphs is None:
                    self._step()
                else:
                    self._graphs.run((len(self._slot_B), self._ranges[0].width), self._step)
            yield from self._look(set(fresh), on_token)

    def _start(self, fresh: Sequence[int], seeds: Mapping[int, int]) -> None:
        """Read the prompts of slots, each once, and draw the first token of each."""
        if self._uniform_ST is not None:
            drawn = uniforms([seeds[self._rows[slot].index] for slot in fresh], self._budget)
            self._uniform_ST[self._on_device(fresh)] = pad(drawn, (0, self._every + 1)).to(self._device)
        for slots in _chunks({slot: self._rows[slot].prompt for slot in fresh}):
            slot_B = self._on_device(list(slots))
            logits_BV = read_prompts(self._copy, self._slots, slots, self._device)
            self._dtype = logits_BV.dtype
            self._position_S[slot_B] = self._on_device([len(prompt) for prompt in slots.values()])
            self._count_S[slot_B] = 0
            self._recent_SR[slot_B] = NO_TOKEN
            self._record(slot_B, logits_BV, 0)

    def _plan(self) -> None:
        """Choose the rows and the ranges of the steps until the next look."""
        rows = sorted(self._rows)
        needed = {slot: self._width(self._rows[slot]) for slot in rows}
        self._column_1.fill_(1)
        if self._graphs is None:
            self._ranges = ranges_of(needed, CALL_COST.get(self._device.type, CALL_COST["cuda"]))
            self._is_dense = rows == list(range(len(rows)))
            if rows != self._in_use:
                self._in_use, self._slot_B = rows, self._on_device(rows)
            return
        width = -(-max(needed.values()) // recorded.WIDTH_STEP) * recorded.WIDTH_STEP
        self._ranges = [Range(0, self._slots.count, min(self._slots.length, width))]
        size = recorded.rows_of(len(rows), self._usable)
        filled = self._on_device([*rows, *[self._usable] * (size - len(rows))])
        self._slot_B = self._slots_by_rows.setdefault(size, filled)
        self._slot_B.copy_(filled)

    def _step(self) -> None:
        """Draw the next token of each row. What changes from step to step is in tensors that stay where they are."""
        slot_B = self._slot_B
        work = step_of(slot_B, self._position_S, self._ranges, self._dtype, is_dense=self._is_dense)
        position_B = work.position_B
        ids_B1 = self._token_S[slot_B].unsqueeze(1)
        logits_BV = self._copy.logits(self._slots, work, ids_B1, position_B.unsqueeze(1), 1)[:, -1]
        self._position_S[slot_B] = position_B + 1
        self._record(slot_B, logits_BV, self._column_1)
        self._column_1 += 1
        if self._graphs is not None:  # rows that fill up stay at their first token
            self._position_S[-1:].zero_()
            self._count_S[-1:].zero_()

    def _record(self, slot_B: Tensor, logits_BV: Tensor, column: Tensor | int) -> None:
        count_B = self._count_S[slot_B]
        token_B, logp_B = self._draw(logits_BV, None if self._uniform_ST is None else self._uniform_ST[slot_B, count_B])
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
        report = torch.stack([drawn_BK.double(), self._value_SK[slot_B].double(), ended_BK.double()], dim=-1)
        last = drawn_BK.shape[1] - 1
        self._recent_SR[slot_B] = known[:, last : last + recent]
        self._drawn_SK[slot_B, 0] = drawn_BK[:, last]
        done = []
        for slot, columns in zip(sorted(self._rows), report.tolist(), strict=True):  # one transfer
            row = self._rows[slot]
            for token, value, has_ended in columns if slot in fresh else columns[1:]:
                if value != value:
                    raise PolicyError("logits contain NaN or Inf: the weights are damaged or overflow in their dtype")
                if on_token is not None:
                    on_token(row.index, len(row.ids), int(token))
                row.ids.append(int(token))
                if self._draw.is_random:
                    row.logps.append(value)
                if has_ended or len(row.ids) == self._budget:
                    completion = Completion(row.prompt, tuple(row.ids), tuple(row.logps), bool(has_ended))
                    done.append((row.index, completion))
                    del self._rows[slot]
                    break
        yield from done

    def _width(self, row: _Row) -> int:
        """Positions that the steps until the next look need, rounded up."""
        needed = len(row.prompt) + len(row.ids) + self._every + 1
        return min(self._slots.length, -(-needed // WIDTH_STEP) * WIDTH_STEP)

    def _on_device(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long).to(self._device)


def read_prompts(
    copy: FrozenCopy, slots: Slots, prompts: Mapping[int, tuple[int, ...]], device: torch.device
) -> Tensor:
    """Read the prompts of slots, equal ones once, into the slots; returns the logits (B, V) of their next tokens."""
    unique = {prompt: number for number, prompt in enumerate(dict.fromkeys(prompts.values()))}
    # The last token of a completion predicts nothing and is left out of the row.
    row = pack([Completion(prompt, (0,), (0.0,), False) for prompt in unique], device, 1, share_prompts=True)
    lengths = np.array([len(prompt) for prompt in prompts.values()])
    number_B = np.array([unique[prompt] for prompt in prompts.values()])
    position_K = np.concatenate([np.arange(length) for length in lengths])
    start_K = np.repeat(row.sequences[number_B, 0], lengths)
    token_K, slot_K = start_K + position_K, np.repeat(np.array(list(prompts)), lengths)
    work = Prompts(row, *(torch.from_numpy(each).to(device) for each in (token_K, slot_K, position_K)))
    logits_UV = copy.logits(slots, work, row.input_ids, row.position_ids, row.predictors.index)[0]
    return logits_UV[torch.from_numpy(number_B).to(device)] if len(unique) < len(prompts) else logits_UV


def _chunks(prompts: Mapping[int, tuple[int, ...]]) -> Iterator[dict[int, tuple[int, ...]]]:
    """Slots and prompts whose different prompts have :data:`PREFILL_TOKENS` tokens or less."""
    chunk: dict[int, tuple[int, ...]] = {}
    tokens, seen = 0, set[tuple[int, ...]]()
    for slot, prompt in prompts.items():
        new = 0 if prompt in seen else len(prompt)
        if chunk and tokens + new > PREFILL_TOKENS:
            yield chunk
            chunk, tokens, seen, new = {}, 0, set(), len(prompt)
        chunk[slot] = prompt
        seen.add(prompt)
        tokens += new
    yield chunk
