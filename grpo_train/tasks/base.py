"""What a task is: problems with a prompt and a gold answer, and the verdict on a completion. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from grpo_train.rewards.grade import Grade

Split = Literal["train", "test"]


class TaskError(Exception):
    """A task that cannot be loaded; the message says what is wrong, where (key, file, line) and the way out."""


@dataclass(frozen=True)
class Problem:
    """One problem of a split."""

    index: int
    """Position in its split."""
    prompt: str
    """All the text that the model is given, template applied."""
    answer: str
    """The gold answer."""
    question: str
    """The question without its template, for people to read."""


class Task(Protocol):
    """Where prompts come from and what is right. Both splits are disjoint and their order never changes."""

    @property
    def name(self) -> str:
        """The name in ``task.name``: "gsm8k", "addition"."""

    @property
    def label(self) -> str:
        """The name in evaluation trees: "gsm8k_r1_template", "addition"."""

    @property
    def stop(self) -> tuple[str, ...]:
        """Strings that end a completion; the string itself stays in the completion."""

    def size(self, split: Split) -> int:
        """Number of problems. Raises TaskError where the split's data is missing or broken."""

    def problem(self, split: Split, index: int) -> Problem:
        """Problem ``index`` of a split, 0 ≤ index < size(split): a pure function of configuration, split and index."""

    def grade(self, completion: str, problem: Problem, truncated: bool) -> Grade:
        """The verdict on a completion (its text after the prompt); ``truncated`` = it hit the generation budget."""
