"""The prompts of each step: a pure function of seed, position and data. The position is the number of prompts drawn so
far, which a checkpoint has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from grpo_train.policy.tokenizer import special_start
from grpo_train.rollout.chat import prompt_text
from grpo_train.run_dir.safe_json import half_character
from grpo_train.tasks import Mixture, Problem, Task, TaskError, data_order
from grpo_train.tasks.shared.base import fingerprint
from grpo_train.tasks.shared.mixture import MixtureOrder


@dataclass(frozen=True)
class Prompt:
    """A problem with the token ids of its prompt."""

    problem: Problem
    ids: tuple[int, ...]


class PromptSource:
    """Training problems whose prompts fit, epoch after epoch; those of a mixture in proportion to its weights."""

    def __init__(
        self,
        task: Task,
        tokenizer: Any,
        *,
        seed: int,
        max_prompt_length: int,
        limit: int | None,
        keep: Mapping[str, Callable[[Problem], bool]] | None = None,
    ) -> None:
        """Tokenize every prompt once. ``keep`` has by label (of a single task: "") which problems are used.

        Raises TaskError if a task has no prompt that is used and fits.
        """
        self._keep = keep or {}
        self._seed, self._tokenizer, self._max_prompt_length = seed, tokenizer, max_prompt_length
        self._pools: dict[str, list[Prompt]] = {}
        self.fingerprints: dict[str, dict[str, Any]] = {}
        """Of the training problems of each part, by its label."""
        self._too_long: dict[str, int] = {}
        parts = task.parts if isinstance(task, Mixture) else {"": task}
        for label, part in parts.items():
            self.set_part(label, part, limit)
        self._order = MixtureOrder([task.weights[label] for label in parts] if isinstance(task, Mixture) else [1])

    @property
    def prompts(self) -> list[Prompt]:
        """The prompts that fit, of all tasks."""
        return [prompt for pool in self._pools.values() for prompt in pool]

    @property
    def num_too_long(self) -> int:
        """Number of prompts that do not fit."""
        return sum(self._too_long.values())

    def set_part(self, label: str, task: Task, limit: int | None = None) -> None:
        """Draw the prompts of a mixture's part (of a single task: "") from ``task`` from now on. Raises TaskError."""
        size = min(limit or task.size("train"), task.size("train"))
        if not size:
            raise TaskError(f"task {task.name}: its train split has no problems")
        problems = [task.problem("train", index) for index in range(size)]
        self.fingerprints[label] = fingerprint(problems)
        if label in self._keep:
            problems = list(filter(self._keep[label], problems))
            if not problems:
                raise TaskError(f"task.pass_rate: none of the {size} training problems of {task.name} is in the range")
            size = len(problems)
        if label:
            problems = [replace(problem, task=label) for problem in problems]
        encoded = encode_prompts(problems, self._tokenizer)
        fits = [len(ids) <= self._max_prompt_length for ids in encoded]
        self._pools[label] = [Prompt(problems[i], encoded[i]) for i in range(size) if fits[i]]
        self._too_long[label] = fits.count(False)
        if not self._pools[label]:
            shortest = min(map(len, encoded))
            raise TaskError(
                f"rollout.max_prompt_length {self._max_prompt_length}: all {size} prompts of task {task.name} are "
                f"longer (the shortest has {shortest} tokens)"
            )

    def draw(self, first: int, count: int) -> list[Prompt]:
        """Prompts of ``count`` consecutive positions of the data order."""
        pools = list(self._pools.values())
        places = (self._order.at(first + k) for k in range(count))
        return [pools[part][data_order(len(pools[part]), self._seed, place)] for part, place in places]

    def epoch(self, count: int) -> float:
        """Epochs of data used by the first ``count`` prompts."""
        return count / sum(map(len, self._pools.values()))


TAIL = 16
"""Tokens at the end of a prompt that show whether it opens or closes the thoughts."""


def end_of(ids: Sequence[int], tokenizer: Any) -> str:
    """The text at the end of a prompt, special tokens included."""
    return str(tokenizer.decode(list(ids[-TAIL:]), skip_special_tokens=False))


def encode_prompts(problems: Sequence[Problem], tokenizer: Any) -> list[tuple[int, ...]]:
    """Token ids of each prompt; problems with messages go through the model's chat template.

    Raises TaskError if the model has no template that accepts them.
    """
    encoded: dict[int, tuple[int, ...]] = {}
    for is_chat in (False, True):
        indices = [index for index, problem in enumerate(problems) if bool(problem.messages) == is_chat]
        texts = [prompt_text(problems[i], tokenizer) for i in indices]
        for index, text in zip(indices, texts, strict=True):
            if half := half_character(text):
                raise TaskError(f"the prompt of problem {problems[index].index} {half}")
        # A chat template writes its special tokens itself.
        start = () if is_chat else special_start(tokenizer)
        found = tokenizer(texts, add_special_tokens=False)["input_ids"] if texts else []
        encoded.update(zip(indices, ((*start, *ids) for ids in found), strict=True))
    return [encoded[index] for index in range(len(problems))]
