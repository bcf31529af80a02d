"""A run's workflow: in one line, stages that are done, the current one, and what follows or ended it; and its edits.

No Textual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from grpo_train.run_dir.workflow_file import is_workflow
from grpo_tui.model.formatting import counted, one_line
from grpo_tui.model.run_row import RunRow

NEXT = 3
"""Stages that are named behind the current one."""

AROUND = 1
"""Stages that are shown around an edit."""


class WorkflowPart(NamedTuple):
    text: str
    tone: str
    """``done``, ``now``, ``bad`` or ``muted``."""


def workflow_parts(workflow: Mapping[str, Any], row: RunRow | None) -> list[WorkflowPart]:
    """The line of a run; [] for one without a workflow. ``workflow``: of a reply to ``show_run``."""
    stages, done = _names(workflow.get("stages")), workflow.get("done")
    if row is None or not is_workflow(stages) or not isinstance(done, int) or not 0 <= done <= len(stages):
        return []
    failed = [name for name in _names(workflow.get("failed")) if name in stages]
    parts = [WorkflowPart(f"{done} of {len(stages)} done", "done" if done else "muted")]
    if failed:
        more = f" and {len(failed) - 1} more" if len(failed) > 1 else ""
        parts.append(WorkflowPart(f"✖ {failed[-1]}{more}", "bad"))
    left = stages[done:]
    if not left:
        return parts
    if row.is_over:
        return [
            *parts,
            WorkflowPart(one_line(f"{row.state}: {row.reason}" if row.reason else row.state), "bad"),
            *_rest(left),
        ]
    parts.append(WorkflowPart(f"▸ {left[0]}", "now"))
    return [*parts, *_rest(left[1:])]


class EditLine(NamedTuple):
    """A line of the comparison of an edited workflow."""

    sign: str
    """``-`` before, ``+`` now, ``✔`` done and kept, or a space."""
    text: str
    note: str = ""


def edit_lines(rows: Sequence[Mapping[str, Any]]) -> list[EditLine]:
    """The edits of a ``plan_resume`` reply with the stages around them; others are counted."""
    edited = [index for index, row in enumerate(rows) if row.get("change") != "kept"]
    near = {index + by for index in edited for by in range(-AROUND, AROUND + 1)}
    lines: list[EditLine] = []
    skipped = 0
    for index, row in enumerate(rows):
        if index in near:
            lines += _skipped(skipped)
            skipped = 0
            lines.append(_edit_line(row))
        else:
            skipped += 1
    return [*lines, *_skipped(skipped)]


def _edit_line(row: Mapping[str, Any]) -> EditLine:
    text, change, done = one_line(str(row.get("stage", ""))), row.get("change"), bool(row.get("done"))
    if change == "kept":
        return EditLine("✔" if done else " ", text)
    if change not in ("removed", "added"):
        return EditLine("?", text, "cannot be read")
    return EditLine("-" if change == "removed" else "+", text, "already done" if done else "")


def _skipped(count: int) -> list[EditLine]:
    return [EditLine(" ", f"… {counted(count, 'unchanged stage')}")] if count else []


def _rest(stages: list[str]) -> list[WorkflowPart]:
    """What follows, or what a resume would do."""
    more = " …" if len(stages) > NEXT else ""
    return [WorkflowPart(f"then {', '.join(stages[:NEXT])}{more}", "muted")] if stages else []


def _names(value: object) -> list[str]:
    return [name for name in value if isinstance(name, str)] if isinstance(value, list) else []
