"""``workflow.json``: the stages of a run and those that are done, as readers show them. Standard library only.

The supervisor writes it (:mod:`grpo_train.supervisor.workflow`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from grpo_train.run_dir.files import read_json
from grpo_train.run_dir.safe_json import MAX_RUN_FILE_BYTES

NAME = "workflow.json"
MAX_STAGES, MAX_NAME = 2_000, 120


def workflow_state(run: Path) -> dict[str, Any] | None:
    """``{"stages": names, "done": count, "failed": names}``; None without a file that says so.

    Raises Unreadable, OSError.
    """
    row = read_json(run / NAME, MAX_RUN_FILE_BYTES, finite=True) or {}
    stages, done, failed = (_names(row.get(key)) for key in ("stages", "done", "failed"))
    if not stages:
        return None
    return {"stages": stages, "done": min(len(done), len(stages)), "failed": failed}


def is_workflow(stages: list[str]) -> bool:
    """Whether stages are more than training and scheduled evaluations."""
    return any(name.startswith(("back up", "clean up")) or " at step " in name for name in stages)


def _names(value: object) -> list[str]:
    found = value[:MAX_STAGES] if isinstance(value, list) else []
    return [name[:MAX_NAME] if name.isprintable() else "?" for name in found if isinstance(name, str)]
