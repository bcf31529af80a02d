"""Tasks, one file each; :func:`load_task` finds the file by ``task.name``. Torch-free.

A task's file ``tasks/NAME.py`` has ``LABEL`` (the name in evaluation trees, also accepted as ``task.name``),
``OPTIONS`` (the keys of the ``task`` section that it reads, besides :data:`COMMON`) and ``load(config) -> Task``.
Nothing else has to be told about a new file. A task of a user's own is a function ``module:function`` or
``file.py:function`` that does what ``load`` does.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any, cast

from grpo_train.config import schema
from grpo_train.rewards.user_code import load_function
from grpo_train.tasks.shared.base import Attempt, Problem, Split, Task, TaskError, Verdict
from grpo_train.tasks.shared.order import data_order

__all__ = [
    "Attempt", "Problem", "Split", "Task", "TaskError", "Verdict", "data_order", "load_task", "refuse_unused",
    "task_names",
]  # fmt: skip

COMMON = ("name", "limit", "rewards", "reward_control", "correct_reward", "incorrect_reward")
"""Keys of the ``task`` section that say something for every task."""
_MEMBERS = ("name", "label", "stop", "rewards", "slow", "size", "problem", "judge")
"""What a :class:`~grpo_train.tasks.shared.base.Task` has."""


def task_names() -> dict[str, str]:
    """Every accepted ``task.name`` and the file that serves it: {"gsm8k": "gsm8k", "gsm8k_r1_template": "gsm8k", …}."""
    return {name: file for file in task_files() for name in (file, str(_module(file).LABEL))}


def task_files() -> list[str]:
    """The tasks, by the names of their files; a file without a ``LABEL`` is something that tasks share."""
    return [name for name in _modules() if _is_task(name)]


def load_task(config: schema.Task, sandbox: schema.Sandbox | None = None) -> Task:
    """The task that ``config.name`` names; one that runs programs does so under the limits of ``sandbox``.

    Raises TaskError (unknown name, missing or malformed data, a machine that cannot lock programs in).
    """
    if ":" in config.name:
        task = _load_own(config)
    else:
        task = cast(Task, _module(_file_of(config.name)).load(config))
    return task if sandbox is None else _locked_in(task, sandbox)


def _load_own(config: schema.Task) -> Task:
    function = load_function(config.name, "task.name")
    try:
        task = function(config)
    except TaskError:
        raise
    except (Exception, SystemExit) as error:  # a user's own function: whatever it raises, its name is what they need
        raise TaskError(f"task.name: '{config.name}' raised {type(error).__name__}: {error}") from error
    if missing := [name for name in _MEMBERS if not hasattr(task, name)]:
        raise TaskError(
            f"task.name: '{config.name}' returned a {type(task).__name__}, which has no {', '.join(missing)}: it must "
            "take the task section and return a Task (grpo_train/tasks/shared/base.py)"
        )
    return cast(Task, task)


def refuse_unused(config: schema.Task, others: Sequence[str] = ()) -> None:
    """Raise TaskError, a line a key, for what is set but read by neither the task nor ``others``, the tasks that it is
    evaluated on (``eval.datasets``). A key at its default counts as not set: a resolved configuration has them all.

    What a task of a user's own reads is not known, so nothing is refused beside one.
    """
    names = [config.name, *others]
    if any(":" in name for name in names):
        return
    files = [_file_of(config.name), *(_file_of(name, "eval.datasets") for name in others)]
    used = {*COMMON, *(key for file in files for key in _module(file).OPTIONS)}
    unused = [
        key
        for key, about in schema.Task.model_fields.items()
        if key not in used and getattr(config, key) != about.get_default(call_default_factory=True)
    ]
    if unused:
        raise TaskError("\n".join(_unused(key, config.name) for key in unused))


def _unused(key: str, task: str) -> str:
    users = [file for file in task_files() if key in _module(file).OPTIONS]
    return f"task.{key} has no effect on task.name {task}: leave it out (it is for {', '.join(users)})"


def _file_of(name: str, key: str = "task.name") -> str:
    if name in _modules() and _is_task(name):
        return name
    names = task_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise TaskError(f"{key}: no task is called '{name}'; {hint}(known: {', '.join(sorted(names))})")
    return names[name]


def _locked_in(task: Task, limits: schema.Sandbox) -> Task:
    """A task that runs programs (it has a field ``sandbox``) under these limits; any other as it is."""
    if not isinstance(getattr(task, "sandbox", None), schema.Sandbox):
        return task
    from grpo_train.sandbox import SandboxError, allow_weak, isolation

    allow_weak(limits.allow_weak)
    try:
        isolation()
    except SandboxError as error:
        raise TaskError(f"task.name {task.name} runs programs that a model wrote: {error}") from error
    return cast(Task, replace(cast(Any, task), sandbox=limits))


def describe(file: str) -> str:
    """The first line of a task's file: what it asks."""
    return (_module(file).__doc__ or "").strip().split("\n")[0]


def _modules() -> list[str]:
    return [module.name for module in pkgutil.iter_modules(__path__)]


def _is_task(file: str) -> bool:
    return hasattr(_module(file), "LABEL")


def _module(file: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{file}")
