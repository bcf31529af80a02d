"""The grading part of a cache key: source of the grader, versions of its libraries, the sandbox. Torch-free."""

from __future__ import annotations

import ast
import hashlib
import importlib.metadata
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpo_train
from grpo_train.evaluation.results.stored import digest
from grpo_train.rewards.user_code import load_function
from grpo_train.sandbox import isolation

if TYPE_CHECKING:
    from grpo_train.config.schema import Config
    from grpo_train.tasks import Task

PACKAGE = Path(grpo_train.__file__).parent if grpo_train.__file__ else Path(grpo_train.__path__[0])
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
    functions = [config.task.grader] if ":" in config.task.grader else []
    judges: list[Any] = [type(task), *(load_function(name, "task.grader") for name in functions)]
    for judge in judges:
        if file := inspect.getsourcefile(judge):
            _gather(Path(file), files, libraries)
    sources = {_name(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return digest({"sources": sources, "libraries": {name: _version(name) for name in sorted(libraries)}})


def _gather(file: Path, files: dict[Path, None], libraries: set[str]) -> None:
    """Add a source file and, recursively, its imports: files that grade, names of third-party libraries."""
    if file in files:
        return
    files[file] = None
    for module in _imports(file):
        top, *rest = module.split(".")
        if top != "grpo_train":
            if top not in sys.stdlib_module_names:
                libraries.add(top)
            continue
        if not rest or rest[0] not in GRADING_ROOMS:
            continue
        path = PACKAGE.joinpath(*rest)
        for candidate in (path.with_suffix(".py"), path / "__init__.py"):
            # The list of all tasks is not part of any one task.
            if candidate.is_file() and candidate != PACKAGE / "tasks" / "__init__.py":
                _gather(candidate, files, libraries)


def _imports(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _name(file: Path) -> str:
    return str(file.relative_to(PACKAGE)) if file.is_relative_to(PACKAGE) else file.name


def _version(library: str) -> str:
    """Version of the distribution that a top-level module most likely comes from."""
    try:
        return importlib.metadata.version(library.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
