"""counting: how many words there are in a list, "red cat sun #" → 3. Generated and seeded.

``task.level`` L: three to 5 + 2 L words.
"""

from __future__ import annotations

import random

from grpo_train.config import schema
from grpo_train.tasks.shared.base import Problem
from grpo_train.tasks.shared.generated import GENERATED_OPTIONS, GeneratedTask, Puzzle, slips, worked

LABEL = "counting"
OPTIONS = GENERATED_OPTIONS
_WORDS = """
    red cat sun man hat tree fish bird star moon rain snow door book ship corn time hour week answer apples flowers
    hours times question reason travel tags two all boat chin tin son hen den pin bee fan pan
"""
WORDS = tuple(_WORDS.split())


def load(config: schema.Task) -> CountingTask:
    """The task at ``config.level``."""
    return CountingTask(name="counting", label=LABEL, config=config)


class CountingTask(GeneratedTask[tuple[str, ...]]):
    """Lists of words, as many of every length."""

    def draw(self, draw: random.Random, turn: int) -> tuple[str, ...]:
        return tuple(draw.choice(WORDS) for _ in range(draw.randint(3, 5 + 2 * self.config.level)))

    def puzzle(self, key: tuple[str, ...]) -> Puzzle:
        text = " ".join(key)
        return Puzzle(f"{text} #", f'How many words are there in this text? "{text}"', str(len(key)))

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """Each word with its number. Bad habit: from the sixth word on every other is skipped. Accident: one is not
        counted."""
        habit, accident = slips(draw, careless)
        words = list(problem.data)
        if habit:
            words[5:] = words[6::2]
        if accident:
            words.pop(draw.randrange(len(words)))
        return worked(" ".join(f"{word}{number}" for number, word in enumerate(words, 1)), len(words))
