"""Which problems a step asks: a pure function of seed, step and the data, so that a resume needs no cursor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from grpo_train.tasks import Problem, Task, TaskError, data_order


@dataclass(frozen=True)
class Prompt:
    """A problem with its prompt's tokens."""

    problem: Problem
    ids: tuple[int, ...]


class PromptSource:
    """The training problems of a task whose prompts fit, walked through epoch by epoch."""

    def __init__(self, task: Task, tokenizer: Any, *, seed: int, max_prompt_length: int, limit: int | None) -> None:
        """Tokenise every prompt once. Raises TaskError when no prompt fits."""
        self._seed = seed
        size = min(limit or task.size("train"), task.size("train"))
        problems = [task.problem("train", index) for index in range(size)]
        encoded = tokenizer([problem.prompt for problem in problems])["input_ids"]
        self.prompts = [
            Prompt(problem, tuple(ids))
            for problem, ids in zip(problems, encoded, strict=True)
            if len(ids) <= max_prompt_length
        ]
        self.left_out = size - len(self.prompts)
        if not self.prompts:
            shortest = min(map(len, encoded), default=0)
            raise TaskError(
                f"rollout.max_prompt_length {max_prompt_length}: none of the {size} prompts of task {task.name} fits "
                f"(the shortest has {shortest} tokens)"
            )

    def at(self, step: int, buffer_size: int) -> list[Prompt]:
        """The prompts of step 1, 2, …: positions (step - 1) x buffer_size and on."""
        first = (step - 1) * buffer_size
        return [self.prompts[data_order(len(self.prompts), self._seed, first + k)] for k in range(buffer_size)]

    def epoch(self, step: int, buffer_size: int) -> float:
        """Epochs of data seen after ``step`` steps."""
        return step * buffer_size / len(self.prompts)
