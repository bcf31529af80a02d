"""Base class of generated tasks: splits of distinct problems, the compact prompt, examples with mistakes.

A generated task is a class with :meth:`~GeneratedTask.draw`, :meth:`~GeneratedTask.puzzle` and
:meth:`~GeneratedTask.example`. Its problems depend on the task's own settings and never on ``run.seed``: every run and
the tiny model's warm start hold out the same ones.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cached_property
from typing import Generic, TypeVar

from grpo_train.config import schema
from grpo_train.rewards.number import judge_number
from grpo_train.tasks.shared.base import Attempt, NoSplitError, Problem, Split, TaskDefaults, TaskKind, Verdict
from grpo_train.tasks.shared.template import ask

HELD_OUT = 1024
"""Problems of the test split, at most a fifth of all."""
MAX_TRAIN = 65_536
"""Maximum number of problems of the train split."""
PATIENCE = 200
"""Consecutive draws without a new problem after which the space counts as exhausted."""
BAD_HABIT, ACCIDENT = 0.7, 0.3
"""Probabilities of the mistakes in careless examples, see :func:`mistakes`."""

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Puzzle:
    """A generated problem before any template. Different keys give different texts, in both forms."""

    compact: str
    """Shortest prompt, for a model of a million parameters: "47-85="."""
    question: str
    """The question in words, for people and language models: "What is 47 - 85?"."""
    answer: str
    """Gold answer."""


@dataclass(frozen=True)
class GeneratedTask(TaskDefaults, ABC, Generic[Key]):
    """A task whose problems are drawn. ``task.template`` defaults to ``compact``; any other asks the question in words.

    Raises TaskError for an unknown template.
    """

    max_train: int = MAX_TRAIN

    @property
    def variant(self) -> str:
        """The settings that the problems depend on; part of their seed."""
        return f"level {self.config.level}"

    @abstractmethod
    def draw(self, rng: random.Random, turn: int) -> Key:
        """Draw the key of a problem; duplicates are discarded. ``turn`` is the number of distinct keys so far, for
        tasks that alternate between classes."""

    @abstractmethod
    def puzzle(self, key: Key) -> Puzzle:
        """The problem of a key; the key becomes ``Problem.data``."""

    @abstractmethod
    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """A worked completion, see :class:`~grpo_train.tasks.shared.base.WorkedTask`."""

    def __post_init__(self) -> None:
        self._ask(0, Puzzle("", "", ""), None)  # raises for an unknown template

    def rows(self, split: Split) -> list[Key]:
        if split not in self._splits:
            raise NoSplitError(f"task.name {self.name} has no {split} split; it has train and test")
        return self._splits[split]

    def problem(self, split: Split, index: int) -> Problem:
        key = self.rows(split)[index]
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
        held_out = min(HELD_OUT, len(keys) // 5) // 2 * 2  # even: two alternating classes stay balanced
        return {"test": keys[:held_out], "train": keys[held_out : len(keys) // 2 * 2]}


def generated_kind(name: str, summary: str, task: type[GeneratedTask[Key]], max_train: int = MAX_TRAIN) -> TaskKind:
    """Registration of a generated task."""

    def load(config: schema.TaskConfig) -> GeneratedTask[Key]:
        return task(name=name, label=name, config=config, max_train=max_train)

    return TaskKind(name, summary, load, load_worked=load)


def distinct(draw: Callable[[random.Random, int], Key], rng: random.Random, count: int) -> list[Key]:
    """Up to ``count`` different keys in the order drawn; fewer when the space is exhausted (:data:`PATIENCE`)."""
    found: dict[Key, None] = {}
    tries = 0
    while len(found) < count and tries < PATIENCE:
        before = len(found)
        found[draw(rng, before)] = None
        tries = 0 if len(found) > before else tries + 1
    return list(found)


def mistakes(rng: random.Random, careless: bool) -> tuple[bool, bool]:
    """Whether an example has the task's bad habit, and whether it has an accident.

    The habit is more frequent than not, so that greedy decoding learns it too. The method stays correct, so that
    reinforcement learning can remove the mistakes.
    """
    if not careless:
        return False, False
    habit = rng.random() < BAD_HABIT
    return habit, rng.random() < ACCIDENT


def worked(thinking: str, answer: object) -> str:
    """A completion in the format that every task asks for."""
    return f"<think>{thinking}</think><answer>{answer}</answer>"
