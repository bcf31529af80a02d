"""Decoding for evaluations: every sample draws from random numbers of its own; who is finished makes room for the next.

So a sample does not depend on what is generated beside it, before it or after it (up to the rounding of the model's own
arithmetic, which depends on the shape of a batch), and uneven lengths do not make short answers wait for long ones.

Shapes: B rows under way, W columns of what they have seen (it ends together, at the right), R recent tokens, N prompts,
T tokens of the budget, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, TopPLogitsWarper
from transformers.cache_utils import DynamicLayer
from transformers.generation.stopping_criteria import StopStringCriteria

ROOM = 8
"""New rows join when an eighth of the batch is free: each joining costs a forward of its own."""
NO_TOKEN = 2**31 - 1
"""In place of tokens before the first: part of no stop string."""


@dataclass(frozen=True)
class Decoded:
    """One completion."""

    ids: tuple[int, ...]
    """Tokens, the end-of-sequence token included when it was drawn."""
    finished: bool
    """False when the generation budget cut it off."""


@dataclass
class _Rows:
    """Rows under way; which prompt each is, and how many tokens it has, is known on both sides of the bus."""

    prompts: list[int]
    counts: list[int]
    prompt_B: torch.Tensor
    count_B: torch.Tensor
    input_BL: torch.Tensor
    """What the model has not seen yet: the prompts at first, then a token each."""
    mask_BW: torch.Tensor
    """What there is to see, ``input_BL`` included."""
    position_BL: torch.Tensor
    recent_BR: torch.Tensor
    cache: Any

    def keep(self, going_on_B: torch.Tensor, going_on: Sequence[bool]) -> None:
        """Only these rows stay; columns that nobody is in any more go."""
        self.prompts = [prompt for prompt, stays in zip(self.prompts, going_on, strict=True) if stays]
        self.counts = [count for count, stays in zip(self.counts, going_on, strict=True) if stays]
        self.cache.batch_select_indices(going_on_B)
        for name in ("prompt_B", "count_B", "input_BL", "mask_BW", "position_BL", "recent_BR"):
            setattr(self, name, getattr(self, name)[going_on_B])
        if self.can_grow and (empty := int(self.mask_BW.any(dim=0).to(torch.uint8).argmax())):
            self.mask_BW = self.mask_BW[:, empty:]
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]

    def join(self, other: _Rows) -> None:
        """Take another batch's rows in; both have been given their next token."""
        self.prompts += other.prompts
        self.counts += other.counts
        width = max(self.mask_BW.shape[1], other.mask_BW.shape[1])
        gaps = [width - each.mask_BW.shape[1] for each in (self, other)]
        self.mask_BW = torch.cat([pad(each.mask_BW, (gap, 0)) for each, gap in zip((self, other), gaps, strict=True)])
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            for name in ("keys", "values"):
                both = (getattr(mine, name), getattr(theirs, name))
                setattr(mine, name, torch.cat([pad(one, (0, 0, gap, 0)) for one, gap in zip(both, gaps, strict=True)]))
        for name in ("prompt_B", "count_B", "input_BL", "position_BL", "recent_BR"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    @property
    def can_grow(self) -> bool:
        """Whether its cache is a plain one; what slides, or is a state, has columns of its own."""
        return all(type(layer) is DynamicLayer for layer in self.cache.layers)


class Decoder:
    """A causal language model (with or without a peft adapter) and its tokenizer."""

    def __init__(self, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        """``stop``: strings at which a completion ends; they stay in it."""
        self._model = model
        # Made once: it looks at every token of the vocabulary.
        self._stop = StopStringCriteria(tokenizer, list(stop)) if stop else None
        self._recent = int(self._stop.maximum_token_len) if self._stop else 0
        self._eos_id = int(tokenizer.eos_token_id)
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._config = inner.config
        takes = inspect.signature(inner.forward).parameters
        self._takes = None if any(each.kind == each.VAR_KEYWORD for each in takes.values()) else set(takes)
        """Names of arguments; None = any."""

    @torch.inference_mode()
    def decode(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        at_once: int = 0,
    ) -> list[Decoded]:
        """One completion of each prompt.

        Args:
            prompts: token ids; at least one token each.
            seeds: each completion's own; 0 ≤ seed < 2^63. Without effect at temperature 0.
            max_completion_length: tokens.
            temperature: 0 = greedy, the first of equals.
            at_once: rows of a batch; 0 = all.

        Raises torch.OutOfMemoryError (CUDA), RuntimeError (CPU) where the batch does not fit.
        """
        device = self._model.device
        size = at_once or len(prompts)
        uniform_NT = _uniforms(seeds, max_completion_length).to(device) if temperature > 0 else None
        drawn_NT = torch.empty((len(prompts), max_completion_length), dtype=torch.long, device=device)
        lengths, finished = [0] * len(prompts), [False] * len(prompts)

        def advance(rows: _Rows) -> None:
            """One token more for each row; those that end leave."""
            logits_BV = self._forward(rows)
            uniform_B = uniform_NT[rows.prompt_B, rows.count_B] if uniform_NT is not None else None
            token_B = _pick(logits_BV, uniform_B, temperature, top_p)
            drawn_NT[rows.prompt_B, rows.count_B] = token_B
            rows.counts = [count + 1 for count in rows.counts]
            rows.count_B = rows.count_B + 1
            rows.input_BL = token_B.unsqueeze(1)
            rows.position_BL = rows.position_BL[:, -1:] + 1
            rows.mask_BW = pad(rows.mask_BW, (0, 1), value=1)
            ended_B = token_B == self._eos_id
            if self._stop is not None:
                rows.recent_BR = torch.cat([rows.recent_BR[:, 1:], rows.input_BL], dim=1)
                ended_B |= self._stop(rows.recent_BR, None)
            ended = ended_B.tolist()
            over = [count == max_completion_length for count in rows.counts]
            for prompt, count, end in zip(rows.prompts, rows.counts, ended, strict=True):
                lengths[prompt], finished[prompt] = count, end
            going_on = [not (end or late) for end, late in zip(ended, over, strict=True)]
            if not all(going_on):
                rows.keep(torch.tensor(going_on, device=device).nonzero().squeeze(1), going_on)

        next_one = 0
        rows: _Rows | None = None
        while next_one < len(prompts) or rows is not None:
            free = size - (len(rows.prompts) if rows else 0)
            may_join = rows is None or (rows.can_grow and free >= max(1, size // ROOM))
            if next_one < len(prompts) and may_join:
                chosen = range(next_one, min(len(prompts), next_one + free))
                next_one = chosen.stop
                fresh = self._start([prompts[number] for number in chosen], chosen)
                advance(fresh)
                if rows is None:
                    rows = fresh
                elif fresh.prompts:
                    rows.join(fresh)
            elif rows is not None:
                advance(rows)
            if rows is not None and not rows.prompts:
                rows = None
        drawn = drawn_NT.tolist()
        return [Decoded(tuple(ids[:length]), end) for ids, length, end in zip(drawn, lengths, finished, strict=True)]

    def _start(self, prompts: Sequence[Sequence[int]], numbers: Sequence[int]) -> _Rows:
        device = self._model.device
        input_BL, mask_BL = _left_padded(prompts, self._eos_id, device)
        return _Rows(
            prompts=list(numbers),
            counts=[0] * len(numbers),
            prompt_B=torch.tensor(list(numbers), device=device),
            count_B=torch.zeros(len(numbers), dtype=torch.long, device=device),
            input_BL=input_BL,
            mask_BW=mask_BL,
            position_BL=(mask_BL.cumsum(1) - 1).clamp(min=0),
            recent_BR=torch.full((len(numbers), self._recent), NO_TOKEN, dtype=torch.long, device=device),
            cache=DynamicCache(config=self._config),
        )

    def _forward(self, rows: _Rows) -> torch.Tensor:
        """The logits of the last position (B, V)."""
        inputs = {
            "input_ids": rows.input_BL,
            "attention_mask": rows.mask_BW,
            "position_ids": rows.position_BL,
            "past_key_values": rows.cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        taken = {k: v for k, v in inputs.items() if self._takes is None or k in self._takes}
        logits: torch.Tensor = self._model(**taken).logits[:, -1]
        return logits


def _left_padded(
    prompts: Sequence[Sequence[int]], pad_id: int, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts (B, L) that end together, and the mask (B, L) of what is there."""
    width = max(map(len, prompts))
    ids = torch.full((len(prompts), width), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """(B, count) numbers in [0, 1): row b is a function of seed b alone."""
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    return torch.stack([torch.rand(count, dtype=torch.float64, generator=generator) for generator in generators])


def _pick(logits_BV: torch.Tensor, uniform_B: torch.Tensor | None, temperature: float, top_p: float) -> torch.Tensor:
    """The next token of each row: the likeliest, or the one at ``uniform`` of the cumulated distribution."""
    if uniform_B is None:
        return logits_BV.argmax(dim=-1)
    scores_BV = logits_BV.float() / temperature
    if top_p < 1:
        scores_BV = TopPLogitsWarper(top_p)(None, scores_BV)
    cumulated_BV = scores_BV.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)
    # Strictly above: a token of probability 0 is never the first to exceed anything.
    at_B1 = uniform_B.unsqueeze(1) * cumulated_BV[:, -1:]
    return torch.searchsorted(cumulated_BV, at_B1, right=True).squeeze(1).clamp(max=logits_BV.shape[-1] - 1)
