"""One completion per prompt and sample, generated in chunks: the sample source of every task that is not a game."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan
from grpo_train.evaluation.results.keys import decoding
from grpo_train.evaluation.results.partial import Partial
from grpo_train.evaluation.targets import Target
from grpo_train.evaluation.workers.checkpoint import layout_of, load_target
from grpo_train.evaluation.workers.memory import automatic_batch_size
from grpo_train.policy.loading import Policy
from grpo_train.rollout import RolloutBackend, seed_of
from grpo_train.rollout.backends import make_backend
from grpo_train.rollout.prompts import encode
from grpo_train.tasks import Problem, Task

CHUNK_BATCHES, CHUNK_SAMPLES = 4, 512
"""Limits of a chunk, in batches and in samples; at least one batch. A kill costs at most one chunk. Within a chunk a
finished completion frees its slot for the next one, so longer chunks keep the batch full for longer."""


class SingleTurn:
    """Completes every prompt ``eval.num_samples`` times. The model is loaded when first needed.

    Item i is sample ``i % num_samples`` of problem ``i // num_samples`` (position in the plan).
    """

    def __init__(self, target: Target, plan: EvalPlan, config: Config, task: Task, problems: Sequence[Problem]) -> None:
        self._target, self._plan, self._config = target, plan, config
        self._task, self._problems = task, problems
        self._decoding = decoding(config, task)
        self._samples = config.eval.num_samples

    def layout(self) -> dict[str, Any]:
        """Chunks of prompts of similar length, longest first, so that memory runs out at once or never.

        A pure function of the plan unless ``eval.batch_size`` is ``auto``.
        """
        items = range(len(self._problems) * self._samples)
        setting = self._config.eval.batch_size
        size = self._automatic_size(len(items)) if isinstance(setting, str) else setting
        order = sorted(items, key=lambda item: (-len(self._prompts[item // self._samples]), item))
        chunk = min(size * CHUNK_BATCHES, max(size, CHUNK_SAMPLES))
        chunks = [order[first : first + chunk] for first in range(0, len(order), chunk)]
        return layout_of(chunks, size, self._plan, self._target, self._policy)

    def generate(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """Rows of these items: item, seed, completion, length (tokens), truncated. A pure function of the list."""
        seeds = [self._seed(item) for item in items]
        completions = self._backend.generate(
            [self._prompts[item // self._samples] for item in items],
            seeds=seeds,
            max_completion_length=self._decoding["max_completion_length"],
            temperature=self._decoding["temperature"],
            top_p=self._decoding["top_p"],
            batch_size=self._batch_size,
        )
        texts = self._policy.tokenizer.batch_decode([each.ids for each in completions], skip_special_tokens=True)
        return [
            {"item": item, "seed": seed, "completion": text, "length": len(each.ids), "truncated": not each.finished}
            for item, seed, each, text in zip(items, seeds, completions, texts, strict=True)
        ]

    def _automatic_size(self, items: int) -> int:
        longest, budget = max(map(len, self._prompts)), self._decoding["max_completion_length"]
        share = math.ceil(items / self._config.eval.nproc)
        return automatic_batch_size(self._policy.model, self._policy.device, longest, budget, share)

    def _seed(self, item: int) -> int:
        index, sample = divmod(item, self._samples)
        return seed_of(self._config.run.seed, self._plan.label, self._problems[index].index, sample)

    @cached_property
    def _batch_size(self) -> int:
        """The batch size that all processes agreed on."""
        return int((Partial.beside(self._plan.result_folder(self._target)).layout() or {})["batch_size"])

    @cached_property
    def _policy(self) -> Policy:
        return load_target(self._plan, self._config, self._target)

    @cached_property
    def _prompts(self) -> list[tuple[int, ...]]:
        return encode(self._problems, self._policy.tokenizer)

    @cached_property
    def _backend(self) -> RolloutBackend:
        return make_backend(self._config, self._policy.model, self._policy.tokenizer, self._task.stop)
