"""Functions from a user's own files: ``module:function`` or ``path/to/file.py:function``."""

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


def load_function(name: str, key: str) -> Callable[..., Any]:
    """The function that ``name`` means. ``key`` is the configuration's key, for the message.

    Modules are looked for on the Python path and in the working directory. Raises TaskError.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _from_file(place) if place.endswith(".py") else _from_path(place)
    except TaskError as error:
        raise TaskError(f"{key}: '{name}': {error}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        known = [one for one, value in vars(module).items() if callable(value) and not one.startswith("_")]
        raise TaskError(f"{key}: {place} has no function '{attribute}'; it has {', '.join(known) or 'none'}")
    found: Callable[..., Any] = function
    return found


@lru_cache(maxsize=32)
def _from_file(place: str) -> ModuleType:
    path = Path(place).expanduser().absolute()
    if not path.is_file():
        raise TaskError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file does wrong
        raise TaskError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _from_path(place: str) -> ModuleType:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        return importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and f"{place}.".startswith(f"{error.name}."):
            raise TaskError(f"there is no module '{place}' (on the Python path or in {Path.cwd()})") from error
        raise TaskError(f"module '{place}' needs '{error.name}', which is not installed") from error
    except (Exception, SystemExit) as error:  # whatever the user's module does wrong
        raise TaskError(f"module '{place}' cannot be imported: {type(error).__name__}: {error}") from error
