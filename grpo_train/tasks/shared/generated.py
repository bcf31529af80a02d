"""What the generated tasks share: splits of distinct problems, the compact prompt, and a careless pupil.

A generated task is a class with :meth:`~GeneratedTask.draw` and :meth:`~GeneratedTask.puzzle`; splits and prompts
follow. Its problems depend on the task's own settings alone, never on ``run.seed``: every run and the tiny model's warm
start hold out the same ones.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Generic, TypeVar

from grpo_train.config import schema
from grpo_train.rewards.accuracy import judge_number
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskDefaults, Verdict, limited
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS, ask

GENERATED_OPTIONS = ("level", *TEMPLATE_OPTIONS)
"""Keys of the ``task`` section that every generated task reads."""
HELD_OUT = 1024
"""Problems of the test split (a fifth of all where there are too few)."""
MAX_TRAIN = 65_536
"""Problems of the train split at most."""
PATIENCE = 200
"""So many draws in a row without a new problem, and the space counts as used up."""
BAD_HABIT, ACCIDENT = 0.7, 0.3
"""How often a careless pupil slips, see :func:`slips`."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Puzzle:
    """A generated problem, before any template. Different keys give different texts, both of them."""

    compact: str
    """The prompt as short as it gets, for a model of a million parameters: "47-85="."""
    question: str
    """The same in words, for people and for models that read: "What is 47 - 85?"."""
    answer: str
    """The gold answer."""


@dataclass(frozen=True)
class GeneratedTask(TaskDefaults, ABC, Generic[Key]):
    """A task whose problems are drawn. ``task.template`` is ``compact`` unless said otherwise; any other asks the
    question in words. Raises TaskError for a template that is none."""

    config: schema.Task = field(default_factory=schema.Task)
    max_train: int = MAX_TRAIN

    @property
    def variant(self) -> str:
        """The settings that the problems depend on; it seeds them."""
        return f"level {self.config.level}"

    @abstractmethod
    def draw(self, draw: random.Random, turn: int) -> Key:
        """What makes a problem: drawn again where it has been drawn before. ``turn`` counts the distinct ones so far
        (a task with classes takes turns among them)."""

    @abstractmethod
    def puzzle(self, key: Key) -> Puzzle:
        """The texts that belong to a key, which becomes ``Problem.data``."""

    def __post_init__(self) -> None:
        self._ask(0, Puzzle("", "", ""), None)

    def size(self, split: Split) -> int:
        return limited(len(self._splits[split]), split, self.config.limit)

    def problem(self, split: Split, index: int) -> Problem:
        key = self._splits[split][index]
        return self._ask(index, self.puzzle(key), key)

    def judge(self, attempt: Attempt) -> Verdict:
        return judge_number(attempt)

    def _ask(self, index: int, puzzle: Puzzle, key: Key | None) -> Problem:
        if self.config.template in (None, "compact"):
            return Problem(index, puzzle.compact, puzzle.answer, puzzle.question, data=key)
        return ask(self.config, index, puzzle.question, puzzle.answer, data=key)

    @cached_property
    def _splits(self) -> dict[str, list[Key]]:
        keys = distinct(self.draw, random.Random(f"{self.name} {self.variant}"), HELD_OUT + self.max_train)
        held_out = min(HELD_OUT, len(keys) // 5) // 2 * 2  # even, so that two classes that take turns stay equal
        return {"test": keys[:held_out], "train": keys[held_out : len(keys) // 2 * 2]}


def distinct(draw: Callable[[random.Random, int], Key], source: random.Random, count: int) -> list[Key]:
    """Up to ``count`` different keys in the order drawn; fewer where no new ones come (:data:`PATIENCE`)."""
    found: dict[Key, None] = {}
    tries = 0
    while len(found) < count and tries < PATIENCE:
        before = len(found)
        found[draw(source, before)] = None
        tries = 0 if len(found) > before else tries + 1
    return list(found)


def slips(draw: random.Random, careless: bool) -> tuple[bool, bool]:
    """What a careless pupil does wrong in a worked example: follows the task's bad habit (more often than not, so that
    greedy decoding follows it too), has an accident. The method stays right, for reinforcement learning to find."""
    if not careless:
        return False, False
    habit = draw.random() < BAD_HABIT
    return habit, draw.random() < ACCIDENT


def worked(thinking: str, answer: object) -> str:
    """A completion in the format that every task asks for."""
    return f"<think>{thinking}</think><answer>{answer}</answer>"
