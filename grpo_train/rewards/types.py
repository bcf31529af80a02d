"""What tasks, graders and reward functions share: task, problem, attempt, verdict. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from grpo_train.run_dir.errors import UserError

Split = Literal["train", "validation", "test"]
"""Every task has train and test; ``validation`` where its dataset publishes one."""


class TaskError(UserError):
    """A task that cannot be loaded; the message says what is wrong, where (key, file, line) and the way out."""

    code = "bad_task"


@dataclass(frozen=True)
class Problem:
    """One problem of a split."""

    index: int
    """Position in its split."""
    prompt: str
    """All the text that the model is given, template applied; with ``messages``, what of it people should read."""
    answer: str
    """The gold answer; "" where there is none (a verdict of tests, a game)."""
    question: str
    """The question without its template, for people to read."""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, text) pairs for the model's own chat template, which then makes the prompt; a last "assistant" message is
    continued by the completion."""
    data: Any = None
    """What else the task needs to judge an answer: tests, constraints, a game's seed."""


@dataclass(frozen=True)
class Attempt:
    """A completion of a problem."""

    problem: Problem
    completion: str
    """The text after the prompt."""
    truncated: bool = False
    """It hit the generation budget."""
    length: int = 0
    """Tokens of the completion."""
    key: str = ""
    """Names the attempt among all of a run, the same after a resume: what seeds a random reward."""
    reply: str | None = None
    """What the opponent of an adversarial task said to it."""


@dataclass(frozen=True)
class Verdict:
    """What a task says about an attempt. What that is worth is for the reward functions."""

    correct: bool
    """The answer is right, in the format the task asks for."""
    formatted: bool
    """The format is right, whatever the answer."""
    reason: str
    """Why: ``ok`` or what was wrong, one word of a small vocabulary ("wrong", "no_answer_tag", "truncated", …)."""
    answer: str | None
    """The text taken as the answer; None where there is none."""
    tolerant: bool | None = None
    """The answer is right in the most lenient reading, tags or not; None where a task has no such reading."""
    score: float | None = None
    """The task's own points (+1, -0.5, …), for the reward function ``score``; None where it has none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Numbers for the log by full key ("hacking/hardcoded"); each is logged as its mean over those that have it, one
    whose key ends in ``_count`` as their sum."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What else is written beside the completion: {"isolation": "strong", "passed": [true, false], …}; plain JSON."""


class Task(Protocol):
    """Where prompts come from and what is right. Splits are disjoint and their order never changes.

    A task that tiny models can be warm-started on (``grpo-train tiny-model --task NAME``) also has
    ``example(problem, draw, careless) -> str``, a worked completion, see :class:`grpo_train.tiny.model.Taught`.
    """

    @property
    def name(self) -> str:
        """The name in ``task.name``: "gsm8k", "addition"."""

    @property
    def label(self) -> str:
        """The name in evaluation trees: "gsm8k_r1_template", "addition"."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a completion; the string itself stays in the completion."""

    @property
    def rewards(self) -> tuple[str, ...]:
        """Names of the reward functions it is trained with where ``task.rewards`` names none: ("accuracy",)."""

    @property
    def slow(self) -> bool:
        """Whether :meth:`judge` waits for another process: it is then called from several threads at once, while the
        next completions are generated."""

    def size(self, split: Split) -> int:
        """Number of problems. Raises TaskError where the split's data is missing or broken."""

    def problem(self, split: Split, index: int) -> Problem:
        """Problem ``index`` of a split, 0 ≤ index < size(split): a pure function of configuration, split and index."""

    def judge(self, attempt: Attempt) -> Verdict:
        """The verdict on an attempt: a pure function, whatever the text. Never raises for what a model wrote."""
