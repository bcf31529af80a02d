"""Rows of a list of runs for what cannot be read. Standard library only."""

from __future__ import annotations

from typing import Any

from grpo_train.run_dir.safe_json import Unreadable


def unreadable_row(name: str, reason: str) -> dict[str, Any]:
    """A row of a list of runs for a run that cannot be read."""
    error = {"code": Unreadable.code, "summary": reason}
    return {"run": printable(name), "state": "unreadable", "layout": "run", "step": 0, "error": error}


def printable(name: str) -> str:
    """A directory's name with every character that cannot be printed escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)
