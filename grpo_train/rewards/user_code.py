"""User-defined functions: ``module:function`` or ``path/to/file.py:function``.

A file may import the files beside it; in a package (a folder with ``__init__.py``) also those of the package.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_train.rewards.types import TaskError
from grpo_train.run_dir.errors import did_you_mean, prefixed


def load_function(name: str, key: str) -> Callable[..., Any]:
    """Load the function ``name``, the value of the config key ``key`` (used in messages).

    Modules are looked up on the Python path and in the working directory. Raises TaskError.
    """
    source, _, attribute = name.rpartition(":")
    with prefixed(f"{key}: '{name}': "):
        module = _import_file(source) if source.endswith(".py") else _import_module(source)
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [found for found, value in vars(module).items() if callable(value) and not found.startswith("_")]
        known = known or [found for found in dir(module) if not found.startswith("_")]  # of a lazy module
        hint = did_you_mean(attribute, known) if known else "it defines none"
        raise TaskError(f"{key}: no function '{attribute}' in {source}; {hint}")
    if module.__file__:
        _loaded[module.__file__] = (key, name)
    checked: Callable[..., Any] = function
    return checked


_loaded: dict[str, tuple[str, str]] = {}
"""File to the config key that named it, and the key's value."""


def blame(error: BaseException) -> str:
    """Of an error that a user's function raised, or let through: its key, its name and the line; "" for another one."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if found := _loaded.get(frame.f_code.co_filename):
            key, name = found
            return f"{key}: '{name}' raised {type(error).__name__}: {error} ({frame.f_code.co_filename}:{line})"
    return ""


@contextmanager
def raising_task_error(what: str) -> Iterator[None]:
    """Turn whatever the user's code of the block raises into a TaskError: ``WHAT ValueError: MESSAGE``."""
    try:
        yield
    except TaskError:  # of a factory of this package that it calls
        raise
    except (Exception, SystemExit) as error:
        raise TaskError(f"{what} {type(error).__name__}: {error}") from error


def absolute_name(name: str) -> str:
    """``file.py:function`` with the absolute path of the file, also for a module that is not installed.

    Unchanged: built-in names, and modules that are installed or cannot be found.
    """
    source, _, attribute = name.rpartition(":")
    if source and not source.endswith(".py"):
        top = source.partition(".")[0]
        if top in sys.stdlib_module_names or top in importlib.metadata.packages_distributions():
            return name
        _add_to_path(Path.cwd())
        try:
            spec = importlib.util.find_spec(source)
        except (Exception, SystemExit):  # of a package's __init__.py; loading the function says what it is
            return name
        source = (spec.origin or "") if spec else ""
    return f"{Path(source).expanduser().absolute()}:{attribute}" if source.endswith(".py") else name


def folders_of(file: Path) -> list[Path]:
    """Where the imports of a user's file are looked up: its folder, and the one that holds its package.

    A folder without ``__init__.py`` is a package of the files that import from it by its name.
    """
    root = file.parent
    while (root / "__init__.py").is_file():
        root = root.parent
    for name in imported_names(file, root):
        for folder in root.parents:
            if "." in name and files_of(name, [folder]) and file.is_relative_to(folder / name.partition(".")[0]):
                root = folder
                break
    return list(dict.fromkeys([file.parent, root]))


def imported_names(file: Path, root: Path) -> Iterator[str]:
    """The modules, and the names in them, that a file imports; of relative imports, the names below ``root``."""
    try:
        nodes = list(ast.walk(ast.parse(file.read_bytes())))
    except (SyntaxError, ValueError):  # importing the file says what it is
        return
    inside = file.parent.relative_to(root).parts if file.is_relative_to(root) else ()
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = inside[: len(inside) - node.level + 1] if node.level else ()
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ([module] if module else [])
            yield from (f"{module}.{alias.name}".lstrip(".") for alias in node.names)


def files_of(module: str, folders: Sequence[Path]) -> list[Path]:
    """The files of a module in the first of the ``folders`` that has it, those of its packages first."""
    parts = module.split(".")
    for folder in folders:
        paths = [folder.joinpath(*parts[:length]) for length in range(1, len(parts) + 1)]
        files = [file for path in paths for file in (path / "__init__.py", path.with_suffix(".py")) if file.is_file()]
        if files:
            return files
    return []


def _check_not_hidden(file: Path, folders: Sequence[Path]) -> None:
    """Raise TaskError where a file imports one beside it, and Python would find another."""
    for name in {name.partition(".")[0] for name in imported_names(file, folders[-1])}:
        if beside := files_of(name, folders):
            spec = getattr(sys.modules.get(name), "__spec__", None) or importlib.util.find_spec(name)
            if spec and spec.origin and Path(spec.origin).resolve() != beside[0].resolve():
                raise TaskError(f"{file} imports '{name}', which is {spec.origin} here; rename {beside[0]}")


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path and not ("" in sys.path and folder == Path.cwd()):
        sys.path.append(str(folder))  # last: a file of the user must not hide a library from the trainer


@lru_cache(maxsize=32)
def _import_file(source: str) -> ModuleType:
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        raise TaskError(f"no such file: {path}")
    folders = folders_of(path)
    for folder in folders:
        _add_to_path(folder)
    _check_not_hidden(path, folders)
    inside = path.with_suffix("").relative_to(folders[-1]).parts
    if len(inside) > 1 and any(name.split(".")[0] == inside[0] for name in imported_names(path, folders[-1])):
        return _import_module(".".join(inside))  # it imports from its own package
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    with raising_task_error(f"cannot import {path}:"):
        spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    _add_to_path(Path.cwd())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise TaskError(
                f"no module '{name}' on the Python path or in {Path.cwd()}; name its file, as in "
                f"/path/to/{name.replace('.', '/')}.py:FUNCTION"
            ) from error
        raise TaskError(f"module '{name}' needs '{error.name}', which is not installed") from error
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise TaskError(f"cannot import module '{name}': {type(error).__name__}: {error}") from error
