"""Generation by a transformers model, with continuous batching: finished rows leave, new ones take their place.

Each prompt is prefilled once. Every completion has its own random numbers, so it depends neither on the rest of the
batch nor on the number of processes (up to rounding, which depends on the shape of a batch).

Shapes: B rows in progress, U unique prompts, W columns of context (right-aligned), R recent tokens, N completions,
T token budget, L leaving rows or new tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.functional import pad
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_train.policy.locate import PolicyError
from grpo_train.policy.logprobs import eval_mode
from grpo_train.rollout import Completion
from grpo_train.rollout.draw import NO_TOKEN, Draw, Ends, uniforms
from grpo_train.rollout.halving import Halving

REFILL_FRACTION = 8
"""New rows join when an eighth of the batch is free, because joining costs an extra forward pass."""
KEYS_AND_VALUES, STATES = "past_key_values", "cache_params"
"""Names of the cache argument. With states only (Mamba), the attention mask covers new tokens only."""
OnToken = Callable[[int, int, int], None]


@dataclass
class _Rows:
    """Rows in progress. Completion indices and token counts are kept on the host and on the device."""

    indices: list[int]
    counts: list[int]
    index_B: torch.Tensor
    count_B: torch.Tensor
    token_B1: torch.Tensor
    """The last token, not yet processed by the model."""
    mask_BW: torch.Tensor
    """Attention mask, ``token_B1`` included."""
    position_B1: torch.Tensor
    """Position of ``token_B1``."""
    recent_BR: torch.Tensor
    cache: Any

    def keep(self, kept_B: torch.Tensor, is_kept: Sequence[bool]) -> None:
        """Keep these rows and drop columns that no kept row uses."""
        self.indices = [index for index, stays in zip(self.indices, is_kept, strict=True) if stays]
        self.counts = [count for count, stays in zip(self.counts, is_kept, strict=True) if stays]
        self.cache.reorder_cache(kept_B)
        for name in ("index_B", "count_B", "token_B1", "mask_BW", "position_B1", "recent_BR"):
            setattr(self, name, getattr(self, name)[kept_B])
        if self.can_grow and (empty := int(self.mask_BW.any(dim=0).to(torch.uint8).argmax())):
            self.mask_BW = self.mask_BW[:, empty:]
            for layer in self.cache.layers:
                layer.keys, layer.values = layer.keys[:, :, empty:], layer.values[:, :, empty:]

    def join(self, other: _Rows) -> None:
        """Add another batch's rows; both have their next token."""
        self.indices += other.indices
        self.counts += other.counts
        width = max(self.mask_BW.shape[1], other.mask_BW.shape[1])
        gaps = [width - rows.mask_BW.shape[1] for rows in (self, other)]
        self.mask_BW = torch.cat([pad(rows.mask_BW, (gap, 0)) for rows, gap in zip((self, other), gaps, strict=True)])
        for mine, theirs in zip(self.cache.layers, other.cache.layers, strict=True):
            for name in ("keys", "values"):
                both = (getattr(mine, name), getattr(theirs, name))
                setattr(mine, name, torch.cat([pad(one, (0, 0, gap, 0)) for one, gap in zip(both, gaps, strict=True)]))
        for name in ("index_B", "count_B", "token_B1", "position_B1", "recent_BR"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(other, name)]))

    @property
    def can_grow(self) -> bool:
        """Whether rows can be added: the cache must be a plain one, without sliding windows or states."""
        return all(type(layer) is DynamicLayer for layer in self.cache.layers)


class TransformersBackend:
    """:class:`~grpo_train.rollout.RolloutBackend` for a causal language model, with or without a peft adapter.

    In training it uses the trainer's model.
    """

    def __init__(self, model: Any, tokenizer: Any, stop: Sequence[str] = ()) -> None:
        """``stop``: strings that end a completion; the completion includes the string."""
        self.fallbacks: dict[str, str] = {}
        self._model = model
        inner = model.get_base_model() if hasattr(model, "get_base_model") else model
        self._ends = Ends(inner, tokenizer, stop)
        self._config = inner.config
        parameters = inspect.signature(inner.forward).parameters
        takes_any = any(parameter.kind == parameter.VAR_KEYWORD for parameter in parameters.values())
        self._accepted = None if takes_any else set(parameters)
        """Argument names of the model's forward; None = any."""
        self._cache_name = STATES if STATES in parameters else KEYS_AND_VALUES
        self._halving = Halving()

    def sync(self) -> None:
        """Nothing to do: the model itself generates."""

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
        on_token: Callable[[int, int, int], None] | None = None,
    ) -> list[Completion]:
        """See :meth:`grpo_train.rollout.RolloutBackend.generate`.

        When a batch does not fit into memory, generation continues with half as many rows, now and in later calls.
        Raises PolicyError if a single row does not fit.
        """
        completions: dict[int, Completion] = {}
        draw = Draw(temperature, top_p, top_k)

        def flow(indices: list[int], size: int) -> Iterator[tuple[int, Completion]]:
            return self._flow(prompts, seeds, indices, size, max_completion_length, draw, on_token)

        with _evaluating(self._model):
            for index, completion in self._halving.run(len(prompts), batch_size, flow):
                completions[index] = completion
                if on_done is not None:  # here, so that its own out-of-memory error is not retried
                    on_done(index, completion)
        return [completions[index] for index in range(len(prompts))]

    def _flow(
        self,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        indices: Sequence[int],
        size: int,
        budget: int,
        draw: Draw,
        on_token: OnToken | None,
    ) -> Iterator[tuple[int, Completion]]:
        """The completions ``indices``, at most ``size`` at once, each when it ends."""
        device = self._model.device
        uniform_NT = uniforms([seeds[index] for index in indices], budget).to(device) if draw.is_random else None
        drawn_NT = torch.empty((len(indices), budget), dtype=torch.long, device=device)
        logp_NT = torch.empty((len(indices), budget), device=device) if draw.is_random else None

        def advance(rows: _Rows, logits_BV: torch.Tensor) -> list[tuple[int, Completion]]:
            """Add one token to each row; rows that end leave and are returned."""
            at = (rows.index_B, rows.count_B)
            token_B, logp_B = draw(logits_BV, None if uniform_NT is None else uniform_NT[at])
            drawn_NT[at] = token_B
            if logp_NT is not None and logp_B is not None:
                logp_NT[at] = logp_B
            if on_token is not None:
                for row, token in enumerate(token_B.tolist()):
                    on_token(indices[rows.indices[row]], rows.counts[row], token)
            rows.counts = [count + 1 for count in rows.counts]
            rows.count_B = rows.count_B + 1
            rows.token_B1 = token_B.unsqueeze(1)
            rows.position_B1 = rows.position_B1 + 1
            rows.mask_BW = pad(rows.mask_BW, (0, 1), value=1)
            if self._ends.recent:
                rows.recent_BR = torch.cat([rows.recent_BR[:, 1:], rows.token_B1], dim=1)
            ended_B = self._ends(token_B, rows.recent_BR)
            nan_B = (logits_BV[:, 0] if logp_B is None else logp_B).isnan()
            has_ended, has_nan = torch.stack([ended_B, nan_B]).tolist()  # one transfer: it waits for the device
            if any(has_nan):
                raise PolicyError("logits contain NaN or Inf: the weights are damaged or overflow in their dtype")
            for row in (row for row, end in enumerate(has_ended) if end and self._ends.recent):
                ids = drawn_NT[rows.index_B[row], : rows.counts[row]].tolist()
                has_ended[row] = self._ends.counts(prompts[indices[rows.indices[row]]], ids)
            is_kept = [not end and count < budget for end, count in zip(has_ended, rows.counts, strict=True)]
            if all(is_kept):
                return []
            done = leaving(rows, is_kept, has_ended)
            rows.keep(torch.tensor(is_kept, device=device).nonzero().squeeze(1), is_kept)
            return done

        def leaving(rows: _Rows, is_kept: Sequence[bool], has_ended: Sequence[bool]) -> list[tuple[int, Completion]]:
            leaving_rows = [row for row, stays in enumerate(is_kept) if not stays]
            longest = max(rows.counts[row] for row in leaving_rows)
            index_L = rows.index_B[torch.tensor(leaving_rows, device=device)]
            ids = drawn_NT[index_L, :longest].tolist()
            logps = logp_NT[index_L, :longest].tolist() if logp_NT is not None else [[] for _ in leaving_rows]
            done: list[tuple[int, Completion]] = []
            for row, ids_T, logps_T in zip(leaving_rows, ids, logps, strict=True):
                index, count = indices[rows.indices[row]], rows.counts[row]
                prompt_ids = tuple(prompts[index])
                completion = Completion(prompt_ids, tuple(ids_T[:count]), tuple(logps_T[:count]), has_ended[row])
                done.append((index, completion))
            return done

        started = 0
        rows: _Rows | None = None
        while started < len(indices) or rows is not None:
            free = size - (len(rows.indices) if rows else 0)
            may_join = rows is None or (rows.can_grow and free >= max(1, size // REFILL_FRACTION))
            if started < len(indices) and may_join:
                chosen = range(started, min(len(indices), started + free))
                started = chosen.stop
                fresh, logits_BV = self._start([tuple(prompts[indices[k]]) for k in chosen], chosen)
                done = advance(fresh, logits_BV)
                if rows is None:
                    rows = fresh
                elif fresh.indices:
                    rows.join(fresh)
            else:
                assert rows is not None
                done = advance(rows, self._forward(rows.token_B1, rows.mask_BW, rows.position_B1, rows.cache))
            if not rows.indices:
                rows = None
            yield from done

    def _start(self, prompts: Sequence[tuple[int, ...]], indices: Sequence[int]) -> tuple[_Rows, torch.Tensor]:
        """Prefill each unique prompt once; returns the rows and the logits (B, V) of their first token."""
        device = self._model.device
        unique = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        input_UL, mask_UL = _left_padded(list(unique), device)
        position_UL = (mask_UL.cumsum(1) - 1).clamp(min=0)
        cache = DynamicCache(config=self._config)
        logits_BV = self._forward(input_UL, mask_UL, position_UL, cache)
        unique_B = torch.tensor([unique[prompt] for prompt in prompts], device=device)
        if len(unique) < len(prompts):
            cache.reorder_cache(unique_B)  # type: ignore[arg-type]  # annotated with a type from before PyTorch 0.4
            logits_BV = logits_BV[unique_B]
        rows = _Rows(
            indices=list(indices),
            counts=[0] * len(indices),
            index_B=torch.tensor(list(indices), device=device),
            count_B=torch.zeros(len(indices), dtype=torch.long, device=device),
            token_B1=input_UL[unique_B, -1:],
            mask_BW=mask_UL[unique_B],
            position_B1=position_UL[unique_B, -1:],
            recent_BR=torch.full((len(indices), self._ends.recent), NO_TOKEN, dtype=torch.long, device=device),
            cache=cache,
        )
        return rows, logits_BV

    def _forward(self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, cache: Any) -> torch.Tensor:
        """Logits (B, V) of the last of the new tokens ``ids`` (B, L), which follow the cached ones."""
        inputs = {
            "input_ids": ids,
            "attention_mask": mask if self._cache_name == KEYS_AND_VALUES else mask[:, -ids.shape[1] :],
            "position_ids": positions,
            self._cache_name: cache,
            "use_cache": True,
            "logits_to_keep": 1,
        }
        accepted = {k: v for k, v in inputs.items() if self._accepted is None or k in self._accepted}
        logits: torch.Tensor = self._model(**accepted).logits[:, -1]
        return logits


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Disable dropout, gradient checkpointing and gradients; afterwards each module has its previous mode.

    inference_mode is cheaper per token, but under autocast it would cast every weight for every token. Autocast's cache
    is cleared before and after, because weights are trained, or swapped for an opponent's, in between.
    """
    without_gradients = torch.no_grad if torch.is_autocast_enabled(model.device.type) else torch.inference_mode
    torch.clear_autocast_cache()
    try:
        with eval_mode(model), without_gradients():
            yield
    finally:
        torch.clear_autocast_cache()


def _left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Right-aligned prompts (B, L) and their mask (B, L)."""
    width = max(map(len, prompts))
    ids = torch.zeros((len(prompts), width), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        ids[row, width - len(prompt) :] = torch.tensor(prompt)
        mask[row, width - len(prompt) :] = 1
    return ids.to(device), mask.to(device)
