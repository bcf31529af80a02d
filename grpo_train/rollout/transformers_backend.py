"""Rollouts by a transformers model: a prompt is read once, who is finished makes room for the next.

Every completion draws from random numbers of its own. So it does not depend on what is generated beside it, before it
or after it, nor on how many processes share the work (up to the rounding of the model's own arithmetic, which depends
on the shape of a batch), and uneven lengths do not make short completions wait for long ones.

Shapes: B rows under way, U different prompts, W columns of what they have seen (it ends together, at the right), R
recent tokens, N completions, T tokens of the budget, V vocabulary.
"""

from __future__ import annotations

import gc
import inspect
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache, TopKLogitsWarper, TopPLogitsWarper
from transformers.cache_utils import DynamicLayer
from transformers.generation.stopping_criteria import StopStringCriteria

from grpo_train.policy.locate import PolicyError
from grpo_train.rollout import Completion

ROOM = 8
"""New rows join when an eighth of the batch is free: each joining costs a forward of its own."""
NO_MEMORY = ("can't allocate memory", "CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
"""What is said of it by the CPU's allocator, and by those who ask CUDA for memory past torch's."""
KEYS_AND_VALUES, STATES = "past_key_values", "cache_params"
"""What a model calls its cache; one of states alone (Mamba) does not look back, and takes the mask of new tokens only.
"""
NO_TOKEN = 2**31 - 1
"""In place of tokens before the first: part of no stop string."""


@dataclass
class _Rows:
    """Rows under way; which completion each is, and how many tokens it has, is known on both sides of the bus."""

    numbers: list[int]
    counts: list[int]
    number_B: torch.Tensor
    count_B: torch.Tensor
    token_B1: torch.Tensor
    """The last token, which the model has not seen yet."""
    mask_BW: torch.Tensor
    """What there is to see, ``token_B1`` included."""
    position_B1: torch.Tensor
    """Where ``token_B1`` stands."""
    recent_BR: torch.Tensor
    cache: Any

    def keep(self, going_on_B: torch.Tensor, going_on: Sequence[bool]) -> None:
        """Only these rows stay; columns that nobody is in any more go."""
        self.numbers = [number for number, stays in zip(self.numbers, going_on, strict=True) if stays]
        self.counts = [count for count, stays in zip(self.counts, going_on, strict=True) if stays]
        self.cache.reorder_cache(going_on_B)
        for name in ("number_B", "count_B", "token_B1", "mask_BW", "position_B1", "recent_BR"):
            setattr(self, name, getattr(self, name)[going_on_B])
        if self.can_grow and (empty := int(self.mask_BW.any(dim=0).to(torch.uint8).argmax())):
            self.mask_BW = self.mask_BW[:, empty:]
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]

    def join(self, other: _Rows) -> None:
        """Take another batch's rows in; both have been given their next token."""
        self.numbers += other.numbers
        self.counts += other.counts
        width = max(self.mask_BW.shape[1], other.mask_BW.shape[1])
        gaps = [width - each.mask_BW.shape[1] for each in (self, other)]
        self.mask_BW = torch.cat([pad(each.mask_BW, (gap, 0)) for each, gap in zip((self, other), gaps, strict=True)])
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            for name in ("keys", "values"):
                both = (getattr(mine, name), getattr(theirs, name))
                setattr(mine, name, torch.cat([pad(one, (0, 0, gap, 0)) for one, gap in zip(both, gaps, strict=True)]))
        for name in ("number_B", "count_B", "token_B1", "position_B1", "recent_BR"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    @property
    def can_grow(self) -> bool:
        """Whether its cache is a plain one; what slides, or is a state, has columns of its own."""
        return all(type(layer) is DynamicLayer for layer in self.cache.layers)


class TransformersBackend:
    """:class:`~grpo_train.rollout.RolloutBackend` over a causal language model, with or without a peft adapter; in
    training it is the trainer's own."""

    def __init__(self, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        """``stop``: strings at which a completion ends; they stay in it."""
        self._model = model
        # Made once: it looks at every token of the vocabulary.
        self._stop = StopStringCriteria(tokenizer, list(stop)) if stop else None
        self._recent = int(self._stop.maximum_token_len) if self._stop else 0
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._eos_ids = _eos_ids(inner, tokenizer)
        self._config = inner.config
        takes = inspect.signature(inner.forward).parameters
        self._takes = None if any(each.kind == each.VAR_KEYWORD for each in takes.values()) else set(takes)
        """Names of arguments; None = any."""
        self._cache_name = STATES if STATES in takes else KEYS_AND_VALUES
        self._fits: int | None = None
        """Rows of a batch where more did not fit into memory; None = not known."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        seeds: Sequence[int],
        max_completion_length: int,
        temperature: float,
        top_p: float = 1.0,
        top_k: int = 0,
        batch_size: int = 0,
        on_done: Callable[[int, Completion], None] | None = None,
    ) -> list[Completion]:
        """See :meth:`grpo_train.rollout.RolloutBackend.generate`.

        Where a batch does not fit into memory it goes on with half as many rows, now and later, and says so. Raises
        PolicyError where one row alone does not fit.
        """
        found: dict[int, Completion] = {}
        draw = _Draw(temperature, top_p, top_k)
        with _evaluating(self._model):
            for number, completion in self._halving(prompts, seeds, batch_size, max_completion_length, draw):
                found[number] = completion
                if on_done is not None:  # here, where its lack of memory is not taken for the batch's
                    on_done(number, completion)
        return [found[number] for number in range(len(prompts))]

    def _halving(
        self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], batch_size: int, budget: int, draw: _Draw
    ) -> Iterator[tuple[int, Completion]]:
        """Each completion as it ends, with half as many rows at once where memory runs out."""
        missing = dict.fromkeys(range(len(prompts)))
        while missing:
            size = min(len(missing), batch_size or len(missing), self._fits or len(missing))
            try:
                for number, completion in self._flow(prompts, seeds, list(missing), size, budget, draw):
                    del missing[number]
                    yield number, completion
                return
            except (RuntimeError, MemoryError) as error:  # torch.OutOfMemoryError is the former
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    raise PolicyError(
                        "one completion alone does not fit into memory: set max_completion_length lower"
                    ) from error
            # Outside of the handler, whose traceback holds the batch's tensors.
            self._fits = math.ceil(size / 2)
            print(f"out of memory: going on with {self._fits} completions at once", flush=True)
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()

    def _flow(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        numbers: Sequence[int],
        size: int,
        budget: int,
        draw: _Draw,
    ) -> Iterator[tuple[int, Completion]]:
        """The completions of ``numbers``, at most ``size`` at once, each when it ends."""
        device = self._model.device
        uniform_NT = _uniforms([seeds[number] for number in numbers], budget).to(device) if draw.is_random else None
        drawn_NT = torch.empty((len(numbers), budget), dtype=torch.long, device=device)
        logp_NT = torch.empty((len(numbers), budget), device=device) if draw.is_random else None
        eos_E = torch.tensor(self._eos_ids, dtype=torch.long, device=device)

        def advance(rows: _Rows, logits_BV: torch.Tensor) -> list[tuple[int, Completion]]:
            """One token more for each row; those that end leave, and are returned."""
            at = (rows.number_B, rows.count_B)
            token_B, logp_B = draw(logits_BV, None if uniform_NT is None else uniform_NT[at])
            drawn_NT[at] = token_B
            if logp_NT is not None and logp_B is not None:
                logp_NT[at] = logp_B
            rows.counts = [count + 1 for count in rows.counts]
            rows.count_B = rows.count_B + 1
            rows.token_B1 = token_B.unsqueeze(1)
            rows.position_B1 = rows.position_B1 + 1
            rows.mask_BW = pad(rows.mask_BW, (0, 1), value=1)
            ended_B = (token_B.unsqueeze(1) == eos_E).any(dim=1)
            if self._stop is not None:
                rows.recent_BR = torch.cat([rows.recent_BR[:, 1:], rows.token_B1], dim=1)
                ended_B |= self._stop(rows.recent_BR, None)
            broken_B = (logits_BV[:, 0] if logp_B is None else logp_B).isnan()
            ended, broken = torch.stack([ended_B, broken_B]).tolist()  # at once: it waits for the device
            if any(broken):
                raise PolicyError(
                    "the model's logits are no numbers: its weights are damaged, or overflow in their type"
                )
            going_on = [not end and count < budget for end, count in zip(ended, rows.counts, strict=True)]
            if all(going_on):
                return []
            done = of_leaving(rows, going_on, ended)
            rows.keep(torch.tensor(going_on, device=device).nonzero().squeeze(1), going_on)
            return done

        def of_leaving(rows: _Rows, going_on: Sequence[bool], ended: Sequence[bool]) -> list[tuple[int, Completion]]:
            leaving = [row for row, stays in enumerate(going_on) if not stays]
            longest = max(rows.counts[row] for row in leaving)
            number_L = rows.number_B[torch.tensor(leaving, device=device)]
            ids = drawn_NT[number_L, :longest].tolist()
            logps = logp_NT[number_L, :longest].tolist() if logp_NT is not None else [[] for _ in leaving]
            done: list[tuple[int, Completion]] = []
            for row, ids_T, logps_T in zip(leaving, ids, logps, strict=True):
                number, count = numbers[rows.numbers[row]], rows.counts[row]
                said, logps_of = tuple(ids_T[:count]), tuple(logps_T[:count])
                done.append((number, Completion(tuple(prompts[number]), said, logps_of, ended[row])))
            return done

        next_one = 0
        rows: _Rows | None = None
        while next_one < len(numbers) or rows is not None:
            free = size - (len(rows.numbers) if rows else 0)
            may_join = rows is None or (rows.can_grow and free >= max(1, size // ROOM))
            if next_one < len(numbers) and may_join:
                chosen = range(next_one, min(len(numbers), next_one + free))
                next_one = chosen.stop
                fresh, logits_BV = self._start([tuple(prompts[numbers[k]]) for k in chosen], chosen)
                done = advance(fresh, logits_BV)
                if rows is None:
                    rows = fresh
                elif fresh.numbers:
                    rows.join(fresh)
            else:
                assert rows is not None
                done = advance(rows, self._forward(rows.token_B1, rows.mask_BW, rows.position_B1, rows.cache))
            if not rows.numbers:
                rows = None
            yield from done

    def _start(self, prompts: Sequence[tuple[int, ...]], numbers: Sequence[int]) -> tuple[_Rows, torch.Tensor]:
        """Rows that have read their prompts, each different one once, and the logits (B, V) of what comes next."""
        device = self._model.device
        places = {prompt: place for place, prompt in enumerate(dict.fromkeys(prompts))}
        input_UL, mask_UL = _left_padded(list(places), device)
        position_UL = (mask_UL.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._config)
        logits_BV = self._forward(input_UL, mask_UL, position_UL, cache)
        place_B = torch.tensor([places[prompt] for prompt in prompts], device=device)
        if len(places) < len(prompts):
            cache.reorder_cache(place_B)  # type: ignore[arg-type]  # it names the type of before PyTorch 0.4
            logits_BV = logits_BV[place_B]
        rows = _Rows(
            numbers=list(numbers),
            counts=[0] * len(numbers),
            number_B=torch.tensor(list(numbers), device=device),
            count_B=torch.zeros(len(numbers), dtype=torch.long, device=device),
            token_B1=input_UL[place_B, -1:],
            mask_BW=mask_UL[place_B],
            position_B1=position_UL[place_B, -1:],
            recent_BR=torch.full((len(numbers), self._recent), NO_TOKEN, dtype=torch.long, device=device),
            cache=cache,
        )
        return rows, logits_BV

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """The logits (B, V) of the last of the tokens (B, L) that follow what is in the cache."""
        inputs = {
            "input_ids": ids,
            "attention_mask": mask if self._cache_name == KEYS_AND_VALUES else mask[:, -ids.shape[1] :],
            "position_ids": positions,
            self._cache_name: cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        taken = {k: v for k, v in inputs.items() if self._takes is None or k in self._takes}
        logits: torch.Tensor = self._model(**taken).logits[:, -1]
        return logits


@dataclass(frozen=True)
class _Draw:
    """How the next token is chosen; nothing of a checkpoint's own generation_config takes part."""

    temperature: float
    top_p: float = 1.0
    top_k: int = 0

    @property
    def is_random(self) -> bool:
        return self.temperature > 0

    def __call__(
        self, logits_BV: torch.Tensor, uniform_B: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The next token of each row (the likeliest, or the one at ``uniform`` of the cumulated distribution), and its
        log-probability under the distribution drawn from; None where nothing was drawn."""
        if uniform_B is None:
            return logits_BV.argmax(dim=-1), None
        scores_BV = logits_BV.float() / self.temperature
        if self.top_k:
            scores_BV = TopKLogitsWarper(self.top_k)(None, scores_BV)
        if self.top_p < 1:
            scores_BV = TopPLogitsWarper(self.top_p)(None, scores_BV)
        logp_BV = scores_BV.log_softmax(dim=-1)
        cumulated_BV = logp_BV.exp().cumsum(dim=-1, dtype=torch.float64)
        # Strictly above: a token of probability 0 is never the first to exceed anything.
        at_B1 = uniform_B.unsqueeze(1) * cumulated_BV[:, -1:]
        token_B1 = torch.searchsorted(cumulated_BV, at_B1, right=True).clamp(max=logits_BV.shape[-1] - 1)
        return token_B1.squeeze(1), logp_BV.gather(1, token_B1).squeeze(1)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that a batch was too large, on a GPU or a CPU."""
    return isinstance(error, (torch.OutOfMemoryError, MemoryError)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in NO_MEMORY)
    )


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout, checkpointing and gradients; each module as it was afterwards.

    inference_mode costs less a token, but under autocast it would cast every weight for every token. What was cast is
    forgotten before and after: weights are trained in between, and swapped for an opponent's.
    """
    without_gradients = torch.no_grad if torch.is_autocast_enabled(model.device.type) else torch.inference_mode
    training = [module for module in model.modules() if module.training]
    model.eval()
    torch.clear_autocast_cache()
    try:
        with without_gradients():
            yield
    finally:
        torch.clear_autocast_cache()
        for module in training:
            module.training = True


def _eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """All that end a completion: the tokenizer's, and those the model was made with, which may be more (Gemma's and
    Llama's end of a turn)."""
    named = getattr(getattr(model, "generation_config", None), "eos_token_id", None)
    listed = [tokenizer.eos_token_id, *(named if isinstance(named, list) else [named])]
    return list(dict.fromkeys(int(token) for token in listed if token is not None))


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Prompts (B, L) that end together, and the mask (B, L) of what is there."""
    width = max(map(len, prompts))
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)


def _uniforms(seeds: Sequence[int], count: int) -> torch.Tensor:
    """(B, count) numbers in [0, 1): row b is a function of seed b alone."""
    generators = (torch.Generator().manual_seed(seed) for seed in seeds)
    return torch.stack([torch.rand(count, dtype=torch.float64, generator=generator) for generator in generators])
