"""The grading part of a cache key: source of the grader, versions of its libraries, the sandbox. Torch-free."""

from __future__ import annotations

import hashlib
import importlib.metadata
import inspect
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpo_train
from grpo_train.evaluation.results.stored import digest
from grpo_train.rewards.user_code import files_of, folders_of, imported_names, load_function
from grpo_train.sandbox import isolation

if TYPE_CHECKING:
    from grpo_train.config.schema import Config
    from grpo_train.tasks import Task

PACKAGE = Path(grpo_train.__file__).parent if grpo_train.__file__ else Path(grpo_train.__path__[0])
INSTALLED = [Path(sysconfig.get_path(name)) for name in ("purelib", "platlib", "stdlib")]
GRADING_ROOMS = ("rewards", "sandbox", "tasks", "games")
"""Packages whose modules are part of a grader that imports them."""


def grading_key(task: Task, config: Config) -> dict[str, Any]:
    """Source of everything that judges; for tasks that run programs also the sandbox and its isolation level.

    Raises SandboxError if the sandbox is unavailable or too weak.
    """
    key: dict[str, Any] = {"grader": grader_key(task, config)}
    if task.slow:
        key["sandbox"] = config.sandbox.model_dump(exclude={"workers", "allow_weak"})
        key["problem_seconds"] = config.eval.problem_seconds
        key["isolation"] = isolation().level
    return key


def grader_key(task: Task, config: Config) -> str:
    """Hash over the source of the task and the graders it imports, and the versions of third-party libraries."""
    files: dict[Path, None] = {}
    libraries: set[str] = set()
    functions = [name for name in (config.task.grader, config.task.name) if ":" in name]
    for judge in [inspect.getsourcefile(type(task)), *(file for name in functions for file in _files_of(name))]:
        if judge:
            _gather(Path(judge), files, libraries)
    sources: dict[str, str] = {}
    for file in files:
        sources[_name(file)] = sources.get(_name(file), "") + hashlib.sha256(file.read_bytes()).hexdigest()
    return digest({"sources": sources, "libraries": {name: _version(name) for name in sorted(libraries)}})


def _files_of(name: str) -> list[str | None]:
    """The source files of a user's function, which may be any object that can be called, and of its module."""
    function, source = load_function(name, "task.grader"), name.rpartition(":")[0]
    if source.endswith(".py"):
        return [str(Path(source).expanduser().absolute())]
    is_defined = inspect.isroutine(function) or inspect.isclass(function)
    return [sys.modules[source].__file__, inspect.getsourcefile(function) if is_defined else None]


def _gather(file: Path, files: dict[Path, None], libraries: set[str], folders: Sequence[Path] | None = None) -> None:
    """Add a source file and, recursively, its imports: files that grade, names of third-party libraries.

    ``folders``: where files of the user are looked up; None = those of this file.
    """
    if file in files:
        return
    files[file] = None
    if folders is None:
        is_own = not any(file.is_relative_to(path) for path in (PACKAGE, *INSTALLED))
        folders = folders_of(file) if is_own else []
    for module in imported_names(file, folders[-1] if folders else PACKAGE.parent):
        top, *rest = module.split(".")
        if top != "grpo_train":
            beside = files_of(module, folders)
            for each in beside:
                _gather(each, files, libraries, folders)
            if not beside and top not in sys.stdlib_module_names:
                libraries.add(top)
            continue
        if not rest or rest[0] not in GRADING_ROOMS:
            continue
        path = PACKAGE.joinpath(*rest)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            # The list of all tasks is not part of any one task.
            if candidate.is_file() and candidate != PACKAGE / "tasks" / "__init__.py":
                _gather(candidate, files, libraries)


def _name(file: Path) -> str:
    return str(file.relative_to(PACKAGE)) if file.is_relative_to(PACKAGE) else file.name


def _version(library: str) -> str:
    """Version of the distribution that a top-level module most likely comes from."""
    try:
        return importlib.metadata.version(library.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
