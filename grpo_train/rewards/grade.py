"""The verdict of a task on one completion. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Grade:
    """What a completion earned and why."""

    rewards: dict[str, float | None]
    """Reward by function name ("accuracy"); None where a function does not apply to this completion."""
    correct: bool
    """The answer is right, in the format the task asks for."""
    formatted: bool
    """The format is right, whatever the answer."""
    reason: str
    """Why: ``ok`` or what was wrong (the reasons of :mod:`grpo_train.rewards.number`)."""
    answer: str | None
    """The text taken as the answer; None where there is none."""

    @property
    def reward(self) -> float:
        """Sum of the rewards that apply, unweighted."""
        return sum(value for value in self.rewards.values() if value is not None)
