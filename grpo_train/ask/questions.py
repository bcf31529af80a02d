"""Questions to a checkpoint: one's own in the prompt of the run, or a held-out problem. Torch-free."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from grpo_train.config.schema import Config
from grpo_train.export.shape import SAMPLES, common_shape
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import UserError
from grpo_train.run_dir.safe_json import half_character
from grpo_train.tasks import Problem, Task
from grpo_train.tasks.shared.self_play import SelfPlayTask

READ_BYTES = 1 << 16


class QuestionError(UserError):
    """A question that cannot be asked."""

    code = "bad_question"


@dataclass(frozen=True)
class Question:
    """What a checkpoint is asked."""

    problem: Problem
    index: int | None = None
    """Index in the evaluated split; None for a question of one's own, which has no gold answer."""


def own_question(text: str, task: Task, config: Config) -> Question:
    """A question in the prompt of the run. Raises QuestionError where the run's prompts do not hold a question."""
    if not text.strip():
        raise QuestionError("the question is empty")
    if half := half_character(text):
        raise QuestionError(f"the question {half}")
    _check_kind(task)
    split = config.eval.split
    problems = [task.problem(split, index) for index in range(min(SAMPLES, task.size(split)))]
    shape = common_shape(problems)
    is_bare = shape == type(shape)(is_chat=shape.is_chat)
    if is_bare and any(each.prompt != each.question for each in problems):
        raise QuestionError(
            f"the prompts of task {task.name} are not a template around a question; ask one of its held-out problems"
        )
    asked = shape.before + text + shape.after
    if not shape.is_chat:
        return Question(Problem(-1, asked, "", text))
    messages = [("system", shape.system)] if shape.system else []
    messages.append(("user", asked))
    if shape.prefill:
        messages.append(("assistant", shape.prefill))
    return Question(Problem(-1, asked, "", text, tuple(messages)))


def held_out_question(index: int, task: Task, config: Config) -> Question:
    """Problem ``index`` of the evaluated split. Raises QuestionError outside of it, and for a game."""
    _check_kind(task)
    size = task.size(config.eval.split)
    if not 0 <= index < size:
        raise QuestionError(f"no problem {index}: split {config.eval.split} has the problems 0 to {size - 1}")
    return Question(task.problem(config.eval.split, index), index)


def _check_kind(task: Task) -> None:
    if isinstance(task, SelfPlayTask):
        raise QuestionError(f"task {task.name} is a game, which has no questions; grpo-train eval plays it")


def lines_of(descriptor: int, idle_s: float, clock: Clock = CLOCK) -> Iterator[str]:
    """The lines that arrive at a descriptor, without their ends; stops at its end, or when none came for ``idle_s``."""
    rest = b""
    while clock.select([descriptor], idle_s):
        data = os.read(descriptor, READ_BYTES)
        *lines, rest = (rest + data).split(b"\n")
        if not data and rest:
            lines, rest = [rest], b""
        yield from (line.decode("utf-8", "replace").rstrip("\r") for line in lines if line.strip())
        if not data:
            return
