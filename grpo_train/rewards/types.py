"""Types shared by tasks, graders and reward functions: task, problem, attempt, verdict. Torch-free."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from grpo_train.run_dir.errors import UserError

LARGEST_REWARD = 1e15
"""Bound of a reward's size: far beyond it, the squares in standard deviations and in the loss overflow."""

Split = Literal["train", "validation", "test"]
"""Every task has ``train`` and ``test``, and ``validation`` if its dataset publishes one."""


class TaskError(UserError):
    """A task that cannot be loaded. The message gives the error, its position (key, file, line) and the fix."""

    code = "bad_task"


class NoSplitError(TaskError):
    """A split that the task's data does not have."""


@dataclass(frozen=True)
class Problem:
    """One problem of a split."""

    index: int
    """Index in its split."""
    prompt: str
    """Full prompt text with the template applied; with ``messages``, a readable version of it."""
    answer: str
    """Gold answer; "" if the task has none (tests, games)."""
    question: str
    """Question without the template, for display."""
    messages: tuple[tuple[str, str], ...] = ()
    """(role, text) pairs for the model's chat template, which then makes the prompt. The completion continues a final
    "assistant" message."""
    data: Any = None
    """Task-specific data for judging: tests, constraints, a game's seed; of a user's own data the row."""
    task: str = ""
    """In a mixture: label of the part it belongs to."""

    template_arguments: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """With ``messages``: ``tools`` and other variables of the model's chat template, by name."""

    @property
    def columns(self) -> dict[str, Any]:
        """What a reward function written for TRL gets by name: ``question``, ``answer``, and the columns of the row."""
        row = self.data if isinstance(self.data, Mapping) else {}
        return {"question": self.question, "answer": self.answer, **row}


@dataclass(frozen=True)
class Attempt:
    """A completion of a problem."""

    problem: Problem
    completion: str
    """Text after the prompt."""
    truncated: bool = False
    """Whether it hit the generation budget."""
    length: int = 0
    """Length of the completion in tokens."""
    key: str = ""
    """Unique name within the run, unchanged by a resume; seeds a random reward."""
    reply: str | None = None
    """Reply of the opponent in an adversarial task."""
    ids: tuple[int, ...] = ()
    """Token ids of the completion; empty where it was not generated."""
    thoughts_closed: bool = False
    """Whether the prompt ends in ``</think>``: the model's chat template has closed the thoughts."""

    @property
    def text(self) -> str:
        """The completion, after the prompt's ``</think>`` if it has none of its own: what graders read."""
        is_closed = self.thoughts_closed and "</think>" not in self.completion
        return f"</think>{self.completion}" if is_closed else self.completion


@dataclass(frozen=True)
class Verdict:
    """A task's judgment of an attempt. Reward functions give it a value."""

    correct: bool
    """The answer is correct and in the required format."""
    formatted: bool
    """The format is correct, whatever the answer."""
    reason: str
    """``ok`` or the error, from a small vocabulary ("wrong", "no_answer_tag", "truncated", …)."""
    answer: str | None
    """Text taken as the answer; None if not found."""
    flexible: bool | None = None
    """The answer is correct in the flexible reading, with or without tags; None if the task has no such reading."""
    score: float | None = None
    """The task's own score (+1, -0.5, …) for the reward function ``score``; None if it has none."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Metrics by log key ("hacking/hardcoded"). The log has the mean over the attempts that report a key, or the sum
    if it ends in ``_count``."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Additional fields of the completion's log row, plain JSON: {"isolation": "strong", "passed": [true, false]}."""


class Task(Protocol):
    """Source of prompts and judge of completions. Splits are disjoint and their order never changes.

    A task for warm starts of tiny models (``grpo-train tiny-model --task NAME``) also has
    ``example(problem, draw, careless) -> str``, a worked completion
    (:class:`~grpo_train.tasks.shared.base.WorkedTask`).
    """

    @property
    def name(self) -> str:
        """Name in ``task.name``: "gsm8k", "addition"."""

    @property
    def label(self) -> str:
        """Name in evaluation directories: "gsm8k_r1_template", "addition"."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a completion; the completion includes the string."""

    @property
    def rewards(self) -> tuple[str, ...]:
        """Default reward functions, used if ``task.rewards`` is empty: ("accuracy",)."""

    @property
    def slow(self) -> bool:
        """Whether :meth:`judge` waits for another process. It is then called from several threads while the next
        completions are generated."""

    @abstractmethod
    def size(self, split: Split) -> int:
        """Number of problems. Raises TaskError if the split's data is missing or invalid."""

    @abstractmethod
    def problem(self, split: Split, index: int) -> Problem:
        """Problem ``index`` of a split, 0 ≤ index < size(split): a pure function of configuration, split and index."""

    @abstractmethod
    def judge(self, attempt: Attempt) -> Verdict:
        """Judge an attempt: a pure function that never raises because of a model's text."""
