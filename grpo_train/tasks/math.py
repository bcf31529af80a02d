r"""Competition problems with LaTeX answers (MATH and similar datasets) from your data, graded by math-verify.

A row has ``problem`` (or ``question``, ``prompt``) and ``answer``, or a ``solution`` whose last ``\boxed{}`` is the
answer; ``task.path`` is as for ``jsonl``. Needs the extra ``math``.
"""

from __future__ import annotations

from grpo_train.config import schema
from grpo_train.tasks.jsonl import FieldNames, JsonlTask, load_rows
from grpo_train.tasks.shared.base import TaskKind

PROMPTS = ("problem", "question", "prompt")
"""Names of the prompt field, tried in this order."""


def load(config: schema.TaskConfig) -> JsonlTask:
    """The task on ``config.path``. Raises TaskError (no path, no math-verify)."""
    return load_rows(
        config, "math", FieldNames(PROMPTS, ("answer", "solution"), config.template_field, ("solution",)), "math"
    )


TASK = TaskKind(
    "math",
    "Competition problems with LaTeX answers (task.path)",
    load,
    alias="math_r1_template",
)
