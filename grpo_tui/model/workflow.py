"""A run's workflow in one line: stages that are done, the current one, and what follows or ended it. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from grpo_train.run_dir.workflow_file import is_workflow
from grpo_tui.model.formatting import one_line
from grpo_tui.model.run_row import RunRow

NEXT = 3
"""Stages that are named behind the current one."""


class Part(NamedTuple):
    text: str
    tone: str
    """``done``, ``now``, ``bad`` or ``muted``."""


def workflow_parts(workflow: Mapping[str, Any], row: RunRow | None) -> list[Part]:
    """The line of a run; [] for one without a workflow. ``workflow``: of a reply to ``show_run``."""
    stages, done = _names(workflow.get("stages")), workflow.get("done")
    if row is None or not is_workflow(stages) or not isinstance(done, int) or not 0 <= done <= len(stages):
        return []
    failed = [name for name in _names(workflow.get("failed")) if name in stages]
    parts = [Part(f"{done} of {len(stages)} done", "done" if done else "muted")]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        parts.append(Part(f"✖ {failed[-1]}{more}", "bad"))
    left = stages[done:]
    if not left:
        return parts
    if row.is_over:
        return [*parts, Part(one_line(f"{row.state}: {row.reason}" if row.reason else row.state), "bad"), *_rest(left)]
    parts.append(Part(f"▸ {left[0]}", "now"))
    return [*parts, *_rest(left[1:])]


def _rest(stages: list[str]) -> list[Part]:
    """What follows, or what a resume would do."""
    more = " …" if len(stages) > NEXT else ""
    return [Part(f"then {', '.join(stages[:NEXT])}{more}", "muted")] if stages else []


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
