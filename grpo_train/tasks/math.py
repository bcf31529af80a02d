r"""Competition problems with LaTeX answers (MATH and similar datasets) from a JSONL file, graded by math-verify.

A row has ``problem`` (or ``question``, ``prompt``) and ``answer``, or a ``solution`` whose last ``\boxed{}`` is the
answer; ``task.path`` is a file or a directory as for ``jsonl``. Needs ``pip install 'grpo-tui[math]'``.
"""

from __future__ import annotations

from grpo_train.config import schema
from grpo_train.tasks.jsonl import Fields, JsonlTask, load_rows
from grpo_train.tasks.shared.base import TaskError, TaskKind
from grpo_train.tasks.shared.data_files import locate, rows_of, split_files
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS

PROMPTS = ("problem", "question", "prompt")
"""Names of the prompt field, tried in this order."""


def load(config: schema.Task) -> JsonlTask:
    """The task on ``config.path``. Raises TaskError (no path, no math-verify)."""
    prompt = PROMPTS[0] if config.path is None else _prompt_field(config.path)
    return load_rows(
        config, "math", Fields(prompt, ("answer", "solution"), config.template_field, ("solution",)), "math"
    )


def _prompt_field(path: str) -> str:
    """The name of the prompt field in the first row of a dataset."""
    files = [file for listed in split_files(locate(path)).values() for file in listed]
    _, record = next(rows_of(files[0]), ("", {}))
    found = [name for name in PROMPTS if name in record]
    if record and not found:
        raise TaskError(
            f"{files[0]}, line 1: none of the fields {', '.join(PROMPTS)}; found {', '.join(list(record)[:8])}"
        )
    return (found or [PROMPTS[0]])[0]


TASK = TaskKind(
    "math",
    "Competition problems with LaTeX answers (task.path)",
    ("path", "template_field", *TEMPLATE_OPTIONS),
    load,
    alias="math_r1_template",
)
