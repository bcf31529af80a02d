"""Who answers in most evaluations: the checkpoint itself, once a prompt and sample, a chunk of samples at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan, Target
from grpo_train.evaluation.results.keys import decoding
from grpo_train.evaluation.results.partial import Partial
from grpo_train.evaluation.workers.memory import automatic_batch_size
from grpo_train.policy.loading import Policy, load_policy, pick_device
from grpo_train.policy.locate import base_of_checkpoint, check_weights, recorded_base
from grpo_train.rollout import Completion, seed_of
from grpo_train.rollout.prompts import encode
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import Problem, Task

BATCHES, CHUNK = 4, 512
"""A chunk is so many batches, or samples, at most (one batch at least). A kill costs no more than a chunk; within it,
who is finished makes room for the next, so that a longer one keeps the batch full for longer."""


class SingleTurn:
    """Answers every problem ``eval.num_samples`` times. The model is loaded when something is to be generated.

    Item i is sample ``i % num_samples`` of problem ``i // num_samples`` (by position in the plan).
    """

    def __init__(self, target: Target, plan: EvalPlan, config: Config, task: Task, problems: Sequence[Problem]) -> None:
        self._target, self._plan, self._config = target, plan, config
        self._task, self._problems = task, problems
        self._decoding = decoding(config, task)
        self._samples = config.eval.num_samples

    def layout(self) -> dict[str, Any]:
        """Which items are generated together, and on what: a pure function of the plan unless the batch is ``auto``.

        Like lengths side by side need little padding; the longest come first, so that memory runs out at once or never.
        """
        items = range(len(self._problems) * self._samples)
        asked = self._config.eval.batch_size
        size = self._automatic(len(items)) if isinstance(asked, str) else asked
        order = sorted(items, key=lambda item: (-len(self._prompts[item // self._samples]), item))
        chunk = min(size * BATCHES, max(size, CHUNK))
        weights = None if self._is_backbone else self._weights
        root = Path(self._plan.root)
        return {
            "chunks": [order[first : first + chunk] for first in range(0, len(order), chunk)],
            "batch_size": size,
            "checkpoint": recorded_base(self._target.path, root) if weights else self._policy.base,
            "device": str(self._policy.device),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }

    def answer(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """The rows of these items: what was said. A pure function of the items' list."""
        seeds = [self._seed(item) for item in items]
        found = self._backend.generate(
            [self._prompts[item // self._samples] for item in items],
            seeds=seeds,
            max_completion_length=self._decoding["max_completion_length"],
            temperature=self._decoding["temperature"],
            top_p=self._decoding["top_p"],
            batch_size=self._batch_size,
        )
        texts = self._policy.tokenizer.batch_decode([one.ids for one in found], skip_special_tokens=True)
        return [
            self._row(item, seed, one, text) for item, seed, one, text in zip(items, seeds, found, texts, strict=True)
        ]

    def _automatic(self, items: int) -> int:
        longest, budget = max(map(len, self._prompts)), self._decoding["max_completion_length"]
        share = math.ceil(items / self._config.eval.nproc)
        return automatic_batch_size(self._policy.model, self._policy.device, longest, budget, share)

    def _row(self, item: int, seed: int, said: Completion, text: str) -> dict[str, Any]:
        return {
            "item": item,
            "seed": seed,
            "completion": text,
            "length": len(said.ids),
            "truncated": not said.finished,
        }

    def _seed(self, item: int) -> int:
        problem, sample = divmod(item, self._samples)
        return seed_of(self._config.run.seed, self._plan.label, self._problems[problem].index, sample)

    @cached_property
    def _batch_size(self) -> int:
        """Completions generated at once: what was agreed on."""
        return int((Partial.beside(self._plan.final(self._target)).layout() or {})["batch_size"])

    @property
    def _is_backbone(self) -> bool:
        return self._target.path == self._plan.root

    @cached_property
    def _weights(self) -> Path:
        return check_weights(Path(self._target.path))

    @cached_property
    def _policy(self) -> Policy:
        root = Path(self._plan.root)
        return load_policy(
            self._config.model,
            root,
            pick_device(self._config.model.device),
            weights=None if self._is_backbone else self._weights,
            base=self._plan.base or base_of_checkpoint(Path(self._target.path), root),
            trainable=False,
        )

    @cached_property
    def _prompts(self) -> list[tuple[int, ...]]:
        return encode(self._problems, self._policy.tokenizer)

    @cached_property
    def _backend(self) -> TransformersBackend:
        return TransformersBackend(self._policy.model, self._policy.tokenizer, self._task.stop)
