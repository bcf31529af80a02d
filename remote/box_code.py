"""``code`` of a box in boxes.yaml."""

from __future__ import annotations

from typing import Any

from remote.base import BoxesError

MODES = ("sync", "clone")


def read_code(node: Any, file: str) -> str:
    """The mode of a YAML node. Raises BoxesError."""
    if node.value not in MODES:
        problem = f"'code' must be sync (grpo-tui sync brings it) or clone (git pull in 'repo'), not {node.value!r}"
        raise BoxesError(f"{file}:{node.start_mark.line + 1}: {problem}")
    return str(node.value)
