"""Base class of tasks in which an opponent model decides what the policy's text was worth. Torch-free."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_train.tasks.shared.base import Attempt, Problem, TaskDefaults


@dataclass(frozen=True)
class Play:
    """A program as the referee sees it."""

    reason: str
    """``ok`` if the program keeps the rules, else the rule it breaks."""
    source: str | None = None
    """The program that is run and shown; None if it does not parse."""
    output: str | None = None
    """What a valid program prints."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_valid(self) -> bool:
        """Whether the opponent is asked."""
        return self.reason == "ok"


@dataclass(frozen=True)
class AdversarialTask(TaskDefaults, ABC):
    """A task whose referee rules on each attempt before the opponent is asked.

    :meth:`judge` gets the opponent's reply in ``Attempt.reply``. Rollouts: :mod:`grpo_train.rollout.adversary`.
    """

    @abstractmethod
    def play(self, attempt: Attempt) -> Play:
        """The referee's ruling; called from several threads at once."""

    @abstractmethod
    def question(self, play: Play) -> Problem:
        """The opponent's problem for a valid play."""
