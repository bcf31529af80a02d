"""Base class of a checkpoint's sample sources, which load its model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

from grpo_train.config.schema import Config
from grpo_train.evaluation.plan import EvalPlan
from grpo_train.evaluation.results.keys import decoding
from grpo_train.evaluation.targets import Target
from grpo_train.policy.loading import Policy, load_policy, pick_device
from grpo_train.policy.locate import base_of_checkpoint, check_positions, check_weights, recorded_base
from grpo_train.rollout import RolloutBackend, seed_of
from grpo_train.tasks import Problem, Task


@dataclass(frozen=True)
class Reply:
    """A completion as text."""

    text: str
    length: int = 0
    """Tokens."""
    truncated: bool = False


def load_checkpoint(path: Path | None, plan: EvalPlan, config: Config) -> Policy:
    """Load a checkpoint's policy, checksums verified; the backbone if ``path`` is None. Raises PolicyError."""
    root = Path(plan.root)
    return load_policy(
        config.model,
        root,
        pick_device(config.model.device),
        weights=check_weights(path) if path else None,
        base=plan.base or (base_of_checkpoint(path, root) if path else None),
        trainable=False,
    )


def check_fit(policy: Policy, prompts: Sequence[Sequence[int]], max_completion_length: int) -> None:
    """Raise PolicyError if a prompt and its completion may exceed the model's positions."""
    longest = max(map(len, prompts), default=0)
    keys = ("the longest prompt", "max_completion_length")
    check_positions(policy.base, policy.model.config.to_dict(), longest, max_completion_length, keys)


class SampleSource(ABC):
    """Source of a target's samples. The model is loaded when first needed.

    Item i is sample ``i % num_samples`` of problem ``i // num_samples`` (position in the plan).
    """

    def __init__(self, target: Target, plan: EvalPlan, config: Config, task: Task, problems: Sequence[Problem]) -> None:
        self._target, self._plan, self._config = target, plan, config
        self._task, self._problems = task, problems
        self._samples = config.eval.num_samples
        self._decoding = decoding(config, task)

    @abstractmethod
    def layout(self) -> dict[str, Any]:
        """Which items are generated together (``chunks``), from which weights, and on what machine."""

    @abstractmethod
    def generate(self, items: Sequence[int]) -> list[dict[str, Any]]:
        """A row per item: item, seed, completion, length (tokens), truncated. A pure function of the list."""

    @cached_property
    def _policy(self) -> Policy:
        return self._load(None if self._plan.is_backbone(self._target) else Path(self._target.path))

    def _load(self, path: Path | None) -> Policy:
        return load_checkpoint(path, self._plan, self._config)

    def _complete(
        self,
        policy: Policy,
        backend: RolloutBackend,
        prompts: Sequence[Sequence[int]],
        seeds: Sequence[int],
        batch_size: int = 0,
    ) -> list[Reply]:
        """Reply to prompts with the decoding parameters of the evaluation. Raises PolicyError where they do not fit."""
        check_fit(policy, prompts, self._decoding["max_completion_length"])
        completions = backend.generate(
            prompts,
            seeds=seeds,
            max_completion_length=self._decoding["max_completion_length"],
            temperature=self._decoding["temperature"],
            top_p=self._decoding["top_p"],
            batch_size=batch_size,
        )
        return [Reply(policy.text(each.ids), len(each.ids), not each.finished) for each in completions]

    def _seed(self, item: int) -> int:
        index, sample = divmod(item, self._samples)
        return seed_of(self._config.run.seed, self._plan.label, self._problems[index].index, sample)

    def _layout(self, items: Sequence[int], chunk: int, batch_size: int) -> dict[str, Any]:
        """The layout of ``items`` in chunks of ``chunk``."""
        backbone, path = self._plan.is_backbone(self._target), self._target.path
        return {
            "chunks": [list(items[first : first + chunk]) for first in range(0, len(items), chunk)],
            "batch_size": batch_size,
            "checkpoint": self._policy.base if backbone else recorded_base(path, Path(self._plan.root)),
            "device": str(self._policy.device),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
