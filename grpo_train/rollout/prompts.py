"""The prompts of each step: a pure function of seed, position and data. The position follows from the step, and with
``rollout.filter_groups`` from a counter in the checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_train.rollout.chat import chat_text
from grpo_train.tasks import Problem, Task, TaskError, data_order


@dataclass(frozen=True)
class Prompt:
    """A problem with the token ids of its prompt."""

    problem: Problem
    ids: tuple[int, ...]


class PromptSource:
    """Training problems whose prompts fit, epoch after epoch."""

    def __init__(self, task: Task, tokenizer: Any, *, seed: int, max_prompt_length: int, limit: int | None) -> None:
        """Tokenize every prompt once. Raises TaskError if no prompt fits."""
        self._seed = seed
        size = min(limit or task.size("train"), task.size("train"))
        problems = [task.problem("train", index) for index in range(size)]
        encoded = encode(problems, tokenizer)
        self.prompts = [
            Prompt(problem, ids)
            for problem, ids in zip(problems, encoded, strict=True)
            if len(ids) <= max_prompt_length
        ]
        self.num_too_long = size - len(self.prompts)
        if not self.prompts:
            shortest = min(map(len, encoded), default=0)
            raise TaskError(
                f"rollout.max_prompt_length {max_prompt_length}: all {size} prompts of task {task.name} are longer "
                f"(the shortest has {shortest} tokens)"
            )

    def at(self, buffer_index: int, buffer_size: int) -> list[Prompt]:
        """Prompts of a buffer 0, 1, …: ``buffer_size`` consecutive positions of the data order."""
        return self.draw(buffer_index * buffer_size, buffer_size)

    def draw(self, first: int, count: int) -> list[Prompt]:
        """Prompts of ``count`` consecutive positions of the data order."""
        return [self.prompts[data_order(len(self.prompts), self._seed, first + k)] for k in range(count)]

    def epoch(self, buffers: int, buffer_size: int, extra: int = 0) -> float:
        """Epochs of data used by the first ``buffers`` buffers and ``extra`` prompts."""
        return (buffers * buffer_size + extra) / len(self.prompts)


def encode(problems: Sequence[Problem], tokenizer: Any) -> list[tuple[int, ...]]:
    """Token ids of each prompt; problems with messages go through the model's chat template.

    Raises TaskError if the model has no template that accepts them.
    """
    encoded: dict[int, tuple[int, ...]] = {}
    for is_chat in (False, True):
        indices = [index for index, problem in enumerate(problems) if bool(problem.messages) == is_chat]
        texts = [chat_text(problems[i].messages, tokenizer) if is_chat else problems[i].prompt for i in indices]
        # A chat template writes its special tokens itself.
        ids = tokenizer(texts, add_special_tokens=not is_chat)["input_ids"] if texts else []
        encoded.update(zip(indices, map(tuple, ids), strict=True))
    return [encoded[index] for index in range(len(problems))]
