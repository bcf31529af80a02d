r"""math: competition problems with LaTeX answers (MATH and its like) from a JSONL file, through math-verify.

A row has ``problem`` (or ``question``, ``prompt``) and ``answer``, or a ``solution`` whose last ``\boxed{}`` is the
answer; ``task.path`` is a file or a directory as for ``jsonl``. Needs ``pip install 'grpo-tui[math]'``.
"""

from __future__ import annotations

from grpo_train.config import schema
from grpo_train.tasks.jsonl import Fields, JsonlTask, load_rows
from grpo_train.tasks.shared.base import TaskError
from grpo_train.tasks.shared.data_files import locate, rows_of, split_files
from grpo_train.tasks.shared.template import TEMPLATE_OPTIONS

LABEL = "math_r1_template"
OPTIONS = ("path", "template_field", *TEMPLATE_OPTIONS)
PROMPTS = ("problem", "question", "prompt")


def load(config: schema.Task) -> JsonlTask:
    """The task on ``config.path``. Raises TaskError (no path, no math-verify)."""
    prompt = PROMPTS[0] if config.path is None else _prompt_field(config.path)
    return load_rows(
        config, "math", Fields(prompt, ("answer", "solution"), config.template_field, ("solution",)), "math"
    )


def _prompt_field(path: str) -> str:
    """The name that the first row of a dataset has for its problem."""
    files = [file for listed in split_files(locate(path)).values() for file in listed]
    _, record = next(rows_of(files[0]), ("", {}))
    found = [name for name in PROMPTS if name in record]
    if record and not found:
        raise TaskError(f"{files[0]}, line 1: none of {', '.join(PROMPTS)} in it; it has {', '.join(list(record)[:8])}")
    return (found or [PROMPTS[0]])[0]
