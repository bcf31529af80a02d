"""Tasks, one file each. Torch-free.

To add a task, write ``tasks/NAME.py`` that ends with ``TASK = TaskKind(...)`` and name its options in
:data:`grpo_train.config.tasks.OPTIONS`. A user's own task is a function ``file.py:function`` that takes the ``task``
section of the config and returns a :class:`~grpo_train.rewards.types.Task`.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from grpo_train.config import schema
from grpo_train.config.tasks import OPTIONS
from grpo_train.rewards.types import Attempt, NoSplitError, Problem, Split, Task, TaskError, Verdict
from grpo_train.rewards.user_code import load_function, raising_task_error
from grpo_train.run_dir.errors import did_you_mean
from grpo_train.tasks.shared.base import TaskDefaults, TaskKind, WorkedTask
from grpo_train.tasks.shared.mixture import Mixture, make_mixture
from grpo_train.tasks.shared.order import data_order

__all__ = [
    "Attempt", "Mixture", "NoSplitError", "Problem", "Split", "Task", "TaskDefaults", "TaskError", "TaskKind",
    "Verdict", "WorkedTask", "data_order", "load_task", "load_worked_task", "refuse_unused", "task_kind", "task_kinds",
]  # fmt: skip

FILES = tuple(OPTIONS)
"""The tasks in the order of listings. Their modules are imported when first needed."""
Loaded = TypeVar("Loaded")
_MEMBERS = ("name", "label", "stop", "rewards", "slow", "size", "problem", "judge")
"""Members of :class:`~grpo_train.rewards.types.Task`, checked on a user's own task."""


def task_kinds() -> list[TaskKind]:
    """The registrations of all tasks, in the order of :data:`FILES`."""
    return [_registered(file) for file in FILES]


def task_kind(name: str, key: str = "task.name") -> TaskKind:
    """The registration for a ``task.name``, the value of the config's ``key``. Raises TaskError for an unknown name."""
    if name in FILES:
        return _registered(name)
    kinds = {known: kind for kind in task_kinds() for known in kind.names}
    if name not in kinds:
        raise TaskError(f"{key}: unknown task '{name}'; {did_you_mean(name, sorted(kinds))}")
    return kinds[name]


def load_task(config: schema.TaskConfig, sandbox: schema.Sandbox | None = None) -> Task:
    """The task that ``config.name`` names, or the mixture of ``config.parts``; programs that models write run under the
    limits of ``sandbox``.

    Raises TaskError (unknown name, missing or malformed data, a machine that cannot isolate programs).
    """
    if config.parts:
        parts = [_of_part(index, load_task, part, sandbox) for index, part in enumerate(config.parts)]
        return make_mixture(config, parts)
    task = _load_user_task(config) if _is_user_task(config.name) else task_kind(config.name).load(config)
    return task.sandboxed(sandbox) if sandbox is not None and isinstance(task, TaskDefaults) else task


def _of_part(index: int, call: Callable[..., Loaded], *arguments: Any) -> Loaded:
    """Call something for a part of a mixture; its errors name the part."""
    try:
        return call(*arguments)
    except TaskError as error:
        message = re.sub(r"^task\.", f"task[{index}].", str(error), flags=re.MULTILINE)
        raise type(error)(message if message != str(error) else f"task[{index}]: {message}") from error


def load_worked_task(config: schema.TaskConfig) -> WorkedTask:
    """The task that ``config.name`` names, with worked examples. Raises TaskError where it has none."""
    found: Any = None
    if _is_user_task(config.name):
        task = _load_user_task(config)
        found = task if hasattr(task, "example") else None
    elif load := task_kind(config.name).load_worked:
        found = load(config)
    if found is None:
        raise TaskError(f"task '{config.name}' has no worked examples to warm-start a model on")
    return cast(WorkedTask, found)


def refuse_unused(config: schema.TaskConfig, others: Sequence[str] = ()) -> None:
    """Raise TaskError, one line per key, for keys that are set but read neither by the task nor by ``others``, the
    tasks of ``eval.datasets``. A key at its default counts as not set: a resolved config lists all keys.

    Nothing is refused beside a user's own task, because its keys are unknown.
    """
    if config.parts:
        labels = [part.part_label for part in config.parts]
        for index, part in enumerate(config.parts):
            _of_part(index, refuse_unused, part, [name for name in others if name not in labels])
        return
    if any(map(_is_user_task, [config.name, *others])):
        return
    kinds = [task_kind(config.name), *(task_kind(name, "eval.datasets") for name in others)]
    used = {*schema.EveryTask.model_fields, "parts", *(key for kind in kinds for key in kind.options)}
    unused = [
        key
        for key, field in schema.TaskConfig.model_fields.items()
        if key not in used and getattr(config, key) != field.get_default(call_default_factory=True)
    ]
    if unused:
        raise TaskError("\n".join(_unused(key, config.name) for key in unused))


def _unused(key: str, task: str) -> str:
    users = [kind.name for kind in task_kinds() if key in kind.options] or ["tasks of your own"]
    return f"task.{key} has no effect on task.name {task}: remove it (used by {', '.join(users)})"


def _registered(file: str) -> TaskKind:
    return cast(TaskKind, importlib.import_module(f"{__name__}.{file}").TASK)


def _is_user_task(name: str) -> bool:
    return ":" in name


def _load_user_task(config: schema.TaskConfig) -> Task:
    function = load_function(config.name, "task.name")
    with raising_task_error(f"task.name: '{config.name}' raised"):
        task = function(config)
    if missing := [name for name in _MEMBERS if not hasattr(task, name)]:
        raise TaskError(
            f"task.name: '{config.name}' returned a {type(task).__name__}, which has no {', '.join(missing)}: it must "
            "take the task section and return a Task (grpo_train/rewards/types.py)"
        )
    return cast(Task, task)
