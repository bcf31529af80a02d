"""One completion per prompt and sample, generated in chunks: the sample source of every task that is not a game."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from grpo_train.evaluation.results.partial import Partial
from grpo_train.evaluation.workers.checkpoint import SampleSource
from grpo_train.evaluation.workers.memory import automatic_batch_size
from grpo_train.rewards.tags import closes_thoughts
from grpo_train.rollout import RolloutBackend
from grpo_train.rollout.backends import decoding_steps, make_backend
from grpo_train.rollout.prompts import encode_prompts, end_of

CHUNK_BATCHES, CHUNK_SAMPLES = 4, 512
"""Limits of a chunk, in batches and in samples; at least one batch. A kill costs at most one chunk. Within a chunk a
finished completion frees its slot for the next one, so longer chunks keep the batch full for longer."""


class SingleTurnSource(SampleSource):
    """Completes every prompt ``eval.num_samples`` times."""

    def layout(self) -> dict[str, Any]:
        """Chunks of prompts of similar length, longest first, so that memory runs out at once or never.

        A pure function of the plan unless ``eval.batch_size`` is ``auto``.
        """
        items = range(len(self._problems) * self._samples)
        setting = self._config.eval.batch_size
        size = self._automatic_size(len(items)) if isinstance(setting, str) else setting
        order = sorted(items, key=lambda item: (-len(self._prompts[item // self._samples]), item))
        chunk = min(size * CHUNK_BATCHES, max(size, CHUNK_SAMPLES))
        return self._layout(order, chunk, size)

    def generate(self, items: Sequence[int]) -> list[dict[str, Any]]:
        seeds = [self._seed(item) for item in items]
        prompts = [self._prompts[item // self._samples] for item in items]
        replies = self._complete(self._policy, self._backend, prompts, seeds, self._batch_size)
        return [
            {"item": item, "seed": seed, "completion": each.text, "length": each.length, "truncated": each.truncated}
            | ({"thoughts_closed": True} if closes_thoughts(end_of(prompt, self._policy.tokenizer)) else {})
            for item, seed, prompt, each in zip(items, seeds, prompts, replies, strict=True)
        ]

    def _automatic_size(self, items: int) -> int:
        longest, budget = max(map(len, self._prompts)), self._decoding["max_completion_length"]
        share = math.ceil(items / self._config.eval.nproc)
        return automatic_batch_size(self._policy.model, self._policy.device, longest, budget, share)

    @cached_property
    def _batch_size(self) -> int:
        """The batch size that all processes agreed on."""
        return int((Partial.beside(self._plan.result_folder(self._target)).layout() or {})["batch_size"])

    @cached_property
    def _prompts(self) -> list[tuple[int, ...]]:
        return encode_prompts(self._problems, self._policy.tokenizer)

    @cached_property
    def _backend(self) -> RolloutBackend:
        share = math.ceil(len(self._problems) * self._samples / self._config.eval.nproc)
        steps = decoding_steps(share, self._decoding["max_completion_length"], self._batch_size)
        return make_backend(self._config, self._policy, self._task.stop, steps=steps)
