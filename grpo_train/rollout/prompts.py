"""Which problems a step asks: a pure function of seed, step and the data, so that a resume needs no cursor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_train.rollout.chat import chat_text
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
        encoded = encode(problems, tokenizer)
        self.prompts = [
            Prompt(problem, ids)
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


def encode(problems: Sequence[Problem], tokenizer: Any) -> list[tuple[int, ...]]:
    """The tokens of each prompt; those with messages go through the model's chat template.

    Raises TaskError where the model has none that takes them.
    """
    found: dict[int, tuple[int, ...]] = {}
    for chats in (False, True):
        places = [place for place, problem in enumerate(problems) if bool(problem.messages) == chats]
        texts = [chat_text(problems[at].messages, tokenizer) if chats else problems[at].prompt for at in places]
        # A chat template writes its special tokens itself.
        encoded = tokenizer(texts, add_special_tokens=not chats)["input_ids"] if texts else []
        found.update(zip(places, map(tuple, encoded), strict=True))
    return [found[place] for place in range(len(problems))]
