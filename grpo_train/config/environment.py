"""Variables from ``.env``: read once, where ``grpo-train`` or a training process starts.

A variable that is set already wins, then ``.env`` in the working directory, then ``~/.grpo/.env``. The processes that
are started later inherit them.
"""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

from dotenv import dotenv_values

from grpo_train.run_dir.machine import env_files

ENVIRONMENT = "environment"
_origins: dict[str, str] = {}


def load_environment() -> None:
    """Set the variables of the files that are not set yet. A file that cannot be read is named on stderr."""
    given = set(os.environ)
    for file in env_files():
        for name, value in _read(file).items():
            _origins.setdefault(name, ENVIRONMENT if name in given else str(file))
            os.environ.setdefault(name, value)


def origins() -> dict[str, str]:
    """Each variable of the files to where its value comes from: ``environment``, or a file of :func:`env_files`."""
    return dict(_origins)


def without_files() -> dict[str, str]:
    """This process's environment without what the files set, for a tmux server or a unit: what these start reads the
    files itself, and others must not find secrets there."""
    return {name: value for name, value in os.environ.items() if _origins.get(name, ENVIRONMENT) == ENVIRONMENT}


def _read(file: Path) -> dict[str, str]:
    try:
        text = file.read_text(encoding="utf-8-sig") if os.path.lexists(file) else ""
        if "\0" in text:
            raise ValueError("it has null bytes")
        values = dotenv_values(stream=io.StringIO(text))
        if wrong := next((name for name in values if not name or "=" in name), None):
            raise ValueError(f"'{wrong}' is not a variable's name")
        return {name: value for name, value in values.items() if value is not None and name}
    except (OSError, ValueError) as error:
        is_text = not isinstance(error, UnicodeDecodeError)
        reason = (getattr(error, "strerror", None) or error) if is_text else "it is not UTF-8"
        print(f"warning: {file} is ignored: {reason}", file=sys.stderr)
        return {}
