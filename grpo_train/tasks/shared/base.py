"""Base class of tasks, their registration, and small helpers. Torch-free."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, Protocol

from grpo_train.config import schema
from grpo_train.config.tasks import OPTIONS
from grpo_train.rewards.number_parser import parse_number, units_differ
from grpo_train.rewards.types import Attempt, NoSplitError, Problem, Split, Task, TaskError, Verdict

__all__ = [
    "Attempt", "NoSplitError", "Problem", "Split", "Task", "TaskDefaults", "TaskError", "TaskKind", "Verdict",
    "WorkedTask", "means",
]  # fmt: skip


@dataclass(frozen=True)
class TaskDefaults(Task):
    """Base class of tasks: the members of :class:`Task` with their usual values, and the optional members.

    A subclass has :meth:`rows`, or its own ``size``.
    """

    name: str = ""
    label: str = ""
    stop: tuple[str, ...] = ("</answer>",)
    rewards: tuple[str, ...] = ("accuracy",)
    slow: bool = False
    eval_temperature: float = 0.0
    """Sampling temperature of evaluations where ``eval.temperature`` is not set."""
    config: schema.TaskConfig = field(default_factory=schema.TaskConfig)

    def rows(self, split: Split) -> Sequence[Any]:
        """What the problems of a split are made of. Raises TaskError."""
        raise NotImplementedError

    def size(self, split: Split) -> int:
        """Number of problems; ``task.limit`` applies to the training split alone."""
        size, limit = len(self.rows(split)), self.config.limit
        return min(size, limit) if split == "train" and limit else size

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks on the data (rows held out, rows dropped), printed when a run starts. Raises TaskError."""
        return ()

    @property
    def hub_path(self) -> str | None:
        """The dataset of the hub that the rows come from where ``task.path`` is not set, as a ``task.path``."""
        return None

    def same_answer(self, one: str, other: str) -> bool:
        """Whether two answers are the same to this task: maj@k counts votes by it. Never raises."""
        return same_value(one, other)

    def sandboxed(self, limits: schema.Sandbox) -> Task:
        """The task under these sandbox limits. Raises TaskError where this machine cannot isolate programs."""
        return self


class WorkedTask(Task, Protocol):
    """A task with worked examples, which a tiny model can be warm-started on."""

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """A completion in the correct format that solves the problem; a careless one sometimes has mistakes."""


@dataclass(frozen=True)
class TaskKind:
    """Registration of a task: every task's file ends with ``TASK = TaskKind(...)``."""

    name: str
    """Value of ``task.name``, and the name of the file."""
    summary: str
    """What the task asks, in one line."""
    load: Callable[[schema.TaskConfig], Task]
    """Makes the task. Raises TaskError for bad options or missing data."""
    alias: str = ""
    """Another accepted ``task.name``: the label in evaluation trees where it differs from the name."""
    load_worked: Callable[[schema.TaskConfig], WorkedTask] | None = None
    """Makes the variant with worked examples, for ``grpo-train tiny-model``."""

    @property
    def options(self) -> tuple[str, ...]:
        """Keys of the ``task`` section it reads, besides those of every task."""
        return tuple(OPTIONS[self.name].model_fields)

    @property
    def names(self) -> tuple[str, ...]:
        """The accepted values of ``task.name``."""
        return (self.name, self.alias) if self.alias else (self.name,)


def same_value(one: str, other: str) -> bool:
    """Whether two answers are equal as numbers ("7" and "7.0"), or the same text."""
    if one.strip() == other.strip():
        return True
    value = parse_number(one)
    return not isinstance(value, str) and value == parse_number(other) and not units_differ(one, other)


def equality_of(task: Task) -> Callable[[str, str], bool]:
    """:meth:`TaskDefaults.same_answer` of a task; :func:`same_value` for a user's task without it."""
    return task.same_answer if isinstance(task, TaskDefaults) else same_value


def means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of every key over the mappings that have it, sorted by key; keys ending in ``_count`` are summed."""
    names = sorted({name for each in metrics for name in each})
    values = {name: [each[name] for each in metrics if name in each] for name in names}
    return {name: sum(found) if name.endswith("_count") else sum(found) / len(found) for name, found in values.items()}


def plain_data(data: Any) -> Any:
    """A task's own data as JSON that is the same in every process (the order of a set is not)."""
    if isinstance(data, (str, int, float, bool, type(None))):
        return data
    if is_dataclass(data) and not isinstance(data, type):
        return {each.name: plain_data(getattr(data, each.name)) for each in fields(data)}
    if isinstance(data, Mapping):
        return {str(key): plain_data(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [plain_data(value) for value in data]
    if isinstance(data, (set, frozenset)):
        return sorted(map(repr, data))
    if isinstance(data, (Decimal, date, time, timedelta, bytes)):  # of a Parquet file
        return str(data)
    return type(data).__qualname__


def fingerprint(problems: Sequence[Problem]) -> dict[str, Any]:
    """What identifies data, whatever the template: number and SHA-256 of its problems in their order."""
    digest = hashlib.sha256()
    for problem in problems:
        record = [problem.question, problem.answer, plain_data(problem.data)]
        digest.update(json.dumps(record, sort_keys=True).encode() + b"\n")
    return {"problems": len(problems), "sha256": digest.hexdigest()}
