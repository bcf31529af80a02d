"""Completions as rows: of a run's rollouts, and of an evaluation under the names that rollouts have."""

from __future__ import annotations

from typing import Any

from grpo_train.run_dir.formats import current_row
from remote.index.lines import read_line

RENAMED = {"index": "group", "question": "prompt", "metrics": "rewards"}
"""Keys of an evaluation's row: a group is a problem."""


def read_completion(line: bytes) -> dict[str, Any] | None:
    """The row of a line; None for one that cannot be read. A row of an evaluation that has no score is worth 1 if it is
    correct, else 0."""
    row = read_line(line)
    if row is None:
        return None
    row = current_row(row)
    if "question" not in row or "prompt" in row:
        return row
    row = {RENAMED.get(key, key): value for key, value in row.items()}
    score, correct = row.get("score"), row.get("correct")
    row["reward"] = score if score is not None else float(correct) if isinstance(correct, bool) else None
    return row
