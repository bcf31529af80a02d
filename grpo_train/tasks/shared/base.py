"""What a task is: problems with a prompt and a gold answer, and the verdict on a completion. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_train.rewards.types import Attempt, Problem, Split, Task, TaskError, Verdict

__all__ = ["Attempt", "Problem", "Split", "Task", "TaskDefaults", "TaskError", "Verdict", "limited", "means"]


@dataclass(frozen=True)
class TaskDefaults:
    """What most tasks have in common; a dataclass of a task may start from it."""

    name: str = ""
    label: str = ""
    stop: tuple[str, ...] = ("</answer>",)
    rewards: tuple[str, ...] = ("accuracy",)
    slow: bool = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of its data (what was held out, what was dropped), told when a run starts."""
        return ()


def limited(size: int, split: Split, limit: int | None) -> int:
    """The size of a split under ``task.limit``, which holds for the training split alone."""
    return min(size, limit) if split == "train" and limit else size


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every key over the mappings that have it, in order of the keys; of a key in ``_count``, the sum."""
    names = sorted({name for each in metrics for name in each})
    values = {name: [each[name] for each in metrics if name in each] for name in names}
    return {name: sum(found) if name.endswith("_count") else sum(found) / len(found) for name, found in values.items()}
