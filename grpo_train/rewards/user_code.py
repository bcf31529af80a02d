"""User-defined functions: ``module:function`` or ``path/to/file.py:function``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_train.rewards.types import TaskError
from grpo_train.run_dir.suggest import did_you_mean


def load_function(name: str, key: str) -> Callable[..., Any]:
    """Load the function ``name``, the value of the config key ``key`` (used in messages).

    Modules are looked up on the Python path and in the working directory. Raises TaskError.
    """
    source, _, attribute = name.rpartition(":")
    try:
        module = _import_file(source) if source.endswith(".py") else _import_module(source)
    except TaskError as error:
        raise TaskError(f"{key}: '{name}': {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [found for found, value in vars(module).items() if callable(value) and not found.startswith("_")]
        known = known or [found for found in dir(module) if not found.startswith("_")]  # of a lazy module
        hint = did_you_mean(attribute, known) if known else "it defines none"
        raise TaskError(f"{key}: no function '{attribute}' in {source}; {hint}")
    checked: Callable[..., Any] = function
    return checked


@lru_cache(maxsize=32)
def _import_file(source: str) -> ModuleType:
    path = Path(source).expanduser().absolute()
    if not path.is_file():
        raise TaskError(f"no such file: {path}")
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise TaskError(f"cannot import {path}: {type(error).__name__}: {error}") from error
    return module


def _import_module(name: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            raise TaskError(f"no module '{name}' on the Python path or in {Path.cwd()}") from error
        raise TaskError(f"module '{name}' needs '{error.name}', which is not installed") from error
    except (Exception, SystemExit) as error:  # user code may raise anything
        raise TaskError(f"cannot import module '{name}': {type(error).__name__}: {error}") from error
