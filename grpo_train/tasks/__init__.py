"""Tasks, one file each; :func:`load_task` finds the file by ``task.name``. Torch-free.

A task's file ``tasks/NAME.py`` has ``LABEL`` (the name in evaluation trees, also accepted as ``task.name``) and
``load(config) -> Task``. Nothing else has to be told about a new file.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from types import ModuleType

from grpo_train import schema
from grpo_train.tasks.base import Problem, Split, Task, TaskError
from grpo_train.tasks.order import data_order

__all__ = ["Problem", "Split", "Task", "TaskError", "data_order", "load_task", "task_names"]

_NO_TASKS = {"base", "order"}


def task_names() -> dict[str, str]:
    """Every accepted ``task.name`` and the file that serves it: {"gsm8k": "gsm8k", "gsm8k_r1_template": "gsm8k", …}."""
    files = [module.name for module in pkgutil.iter_modules(__path__) if module.name not in _NO_TASKS]
    return {name: file for file in files for name in (file, _module(file).LABEL)}


def load_task(config: schema.Task) -> Task:
    """The task that ``config.name`` names. Raises TaskError (unknown name, missing or malformed data)."""
    names = task_names()
    if config.name not in names:
        near = difflib.get_close_matches(config.name, names, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise TaskError(f"task.name: no task is called '{config.name}'; {hint}(known: {', '.join(sorted(names))})")
    task: Task = _module(names[config.name]).load(config)
    return task


def _module(file: str) -> ModuleType:
    return importlib.import_module(f"{__name__}.{file}")
