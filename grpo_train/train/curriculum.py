"""A curriculum: a generated task's level rises when its accuracy over a window of buffers reaches a threshold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.tasks import Mixture, Task, TaskError, load_task, task_kind, task_kinds
from grpo_train.tasks.shared.mixture import make_mixture

FILE = "curriculum"
"""File name (without suffix) of the state in a checkpoint."""


@dataclass(frozen=True)
class Raised:
    """A level that a buffer raised."""

    task: str
    level: int
    """The new one, from the next buffer on."""
    accuracy: float
    """Over the window, at the level before."""


class LevelControl:
    """The level of one task, and its accuracy in the last buffers at that level."""

    def __init__(self, config: Config) -> None:
        """Start at ``task.level``. Raises TaskError for a task without levels."""
        parts = {part.part_label: part for part in config.task.parts or [config.task]}
        self.label = config.curriculum.task or next(iter(parts))
        self._section, self._settings, self._config = parts[self.label], config.curriculum, config
        name = self._section.name
        if ":" in name or "level" not in task_kind(name).options:
            known = ", ".join(kind.name for kind in task_kinds() if "level" in kind.options)
            raise TaskError(f"curriculum: task {name} has no levels; set curriculum.task to one of {known}")
        self.level = self._section.level
        self._window: list[list[int]] = []
        """[correct, completions] of the last buffers with prompts of the task."""

    def mixture(self) -> Mixture:
        """The run's task with this one at its level; a single task is a mixture of one. Raises TaskError."""
        task = load_task(self._config.task, self._config.sandbox)
        mixture = task if isinstance(task, Mixture) else make_mixture(self._config.task, [task])
        mixture.parts[self.label] = self.task()
        return mixture

    def task(self) -> Task:
        """The task at its level. Raises TaskError."""
        return load_task(self._section.model_copy(update={"level": self.level}), self._config.sandbox)

    def add(self, judged: Iterable[tuple[str, bool]]) -> Raised | None:
        """Add everything drawn for a buffer, as label of the task and whether the completion is correct.

        Returns the new level if that raises it.
        """
        mine = [correct for label, correct in judged if label == self.label]
        if not mine or self._settings.threshold is None or self.level >= self._settings.max_level:
            return None
        self._window = [*self._window, [sum(mine), len(mine)]][-self._settings.window :]
        accuracy = sum(correct for correct, _ in self._window) / sum(count for _, count in self._window)
        if len(self._window) < self._settings.window or accuracy < self._settings.threshold:
            return None
        self.level, self._window = self.level + 1, []
        return Raised(self.label, self.level, accuracy)

    def state_dict(self) -> dict[str, Any]:
        """Level and window, with the task and the level that they started from."""
        start = [self.label, self._section.level]
        return {"start": start, "level": self.level, "window": [list(each) for each in self._window]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore :meth:`state_dict`; a changed ``task.level`` or ``curriculum.task`` starts again."""
        if state["start"] == [self.label, self._section.level]:
            self.level, self._window = state["level"], [list(each) for each in state["window"]]
