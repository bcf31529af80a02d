"""Counting the words of a list, "red cat sun #" → 3. Generated and seeded.

``task.level`` L: 3 to 5 + 2 L words.
"""

from __future__ import annotations

import random

from grpo_train.tasks.shared.base import Problem
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

_WORDS = """
    red cat sun man hat tree fish bird star moon rain snow door book ship corn time hour week answer apples flowers
    hours times question reason travel tags two all boat chin tin son hen den pin bee fan pan
"""
WORDS = tuple(_WORDS.split())


class CountingTask(GeneratedTask[tuple[str, ...]]):
    """Lists of words, lengths uniformly distributed."""

    def draw(self, rng: random.Random, turn: int) -> tuple[str, ...]:
        return tuple(rng.choice(WORDS) for _ in range(rng.randint(3, 5 + 2 * self.config.level)))

    def puzzle(self, key: tuple[str, ...]) -> Puzzle:
        text = " ".join(key)
        return Puzzle(f"{text} #", f'How many words are there in this text? "{text}"', str(len(key)))

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """Each word with its number. Bad habit: every other word after the fifth is skipped. Accident: one word is not
        counted."""
        habit, accident = mistakes(rng, careless)
        words = list(problem.data)
        if habit:
            words[5:] = words[6::2]
        if accident:
            words.pop(rng.randrange(len(words)))
        return worked(" ".join(f"{word}{count}" for count, word in enumerate(words, 1)), len(words))


TASK = generated_kind("counting", "Number of words in a list: red cat sun # → 3", CountingTask)
