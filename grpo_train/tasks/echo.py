"""Repeating the given letters, the easiest task of the ladder. Generated and seeded.

``task.level`` L: L + 2 letters.
"""

from __future__ import annotations

import random
from string import ascii_lowercase

from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked


class EchoTask(GeneratedTask[str]):
    """Random letters, to be repeated exactly."""

    def draw(self, rng: random.Random, turn: int) -> str:
        return "".join(rng.choice(ascii_lowercase) for _ in range(self.config.level + 2))

    def puzzle(self, key: str) -> Puzzle:
        return Puzzle(f"{key}:", f"Repeat these letters exactly: {key}", key)

    def judge(self, attempt: Attempt) -> Verdict:
        return judge_text(attempt, lambda answer: answer == attempt.problem.answer)

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """The letters. Bad habit: the last two are sorted. Accident: one letter is replaced."""
        habit, accident = mistakes(rng, careless)
        letters = list(problem.answer)
        if habit:
            letters[-2:] = sorted(letters[-2:])
        if accident:
            letters[rng.randrange(len(letters))] = rng.choice(ascii_lowercase)
        return worked("", "".join(letters))


TASK = generated_kind("echo", "Repeating the given letters", EchoTask)
