"""The prompt of a run as a frame around the user's question, read from the prompts of its own problems. Torch-free."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from grpo_train.config import with_changes
from grpo_train.config.schema import Config
from grpo_train.tasks import Problem, TaskError, load_task
from grpo_train.tasks.shared.template import ask

SAMPLES = 8
"""Problems that are compared."""


@dataclass(frozen=True)
class PromptShape:
    """What the prompts of a run put around the question."""

    is_chat: bool
    """Whether the prompt is messages for the model's own chat template."""
    before: str = ""
    """Text before the question, in the prompt or in the user's message."""
    after: str = ""
    system: str = ""
    """System message."""
    prefill: str = ""
    """Start of the assistant's answer."""


def sample_problems(config: Config) -> list[Problem]:
    """A few problems of the run's task; where its data is missing, one made from ``task.template``.

    Raises TaskError if neither is possible.
    """
    if config.task.parts:
        parts = [with_changes(config, task={**part.model_dump(), "parts": []}) for part in config.task.parts]
        return [problem for part in parts for problem in sample_problems(part)]
    try:
        task = load_task(config.task)
    except TaskError:
        return [ask(config.task, 0, "What is 6 times 7?", "42")]
    for split in ("train", "test"):
        try:
            return [task.problem(split, index) for index in range(min(SAMPLES, task.size(split)))]
        except TaskError:
            continue
    return [ask(config.task, 0, "What is 6 times 7?", "42")]


def common_shape(problems: Sequence[Problem]) -> PromptShape:
    """The frame that all problems share; an empty one if their prompts have none in common."""
    frames = [_frames(problem) for problem in problems]
    shared = [frame for frame in frames[0] if all(frame in others for others in frames[1:])]
    return shared[0] if shared else PromptShape(is_chat=bool(problems[0].messages))


def _frames(problem: Problem) -> list[PromptShape]:
    """Every frame that gives this problem's prompt: the question may occur in it more than once."""
    if not problem.messages:
        return [PromptShape(False, before, after) for before, after in _around(problem.question, problem.prompt)]
    turns = list(problem.messages)
    prefill = turns.pop()[1] if turns[-1][0] == "assistant" else ""
    system = turns.pop(0)[1] if turns[0][0] == "system" else ""
    if [role for role, _ in turns] != ["user"]:
        return []
    around = _around(problem.question, turns[0][1])
    return [PromptShape(True, before, after, system, prefill) for before, after in around]


def _around(question: str, text: str) -> list[tuple[str, str]]:
    """The texts before and after each occurrence of the question, the last one first."""
    found = [match.start() for match in re.finditer(f"(?={re.escape(question)})", text)] if question else []
    return [(text[:start], text[start + len(question) :]) for start in reversed(found)]
