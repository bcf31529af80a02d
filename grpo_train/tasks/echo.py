"""echo: say the given letters again. Generated and seeded; the ladder's first rung.

``task.level`` L: L + 2 letters.
"""

from __future__ import annotations

import random
from string import ascii_lowercase

from grpo_train.config import schema
from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GENERATED_OPTIONS, GeneratedTask, Puzzle, slips, worked

LABEL = "echo"
OPTIONS = GENERATED_OPTIONS


def load(config: schema.Task) -> EchoTask:
    """The task at ``config.level``."""
    return EchoTask(name="echo", label=LABEL, config=config)


class EchoTask(GeneratedTask[str]):
    """Random letters, to be repeated exactly."""

    def draw(self, draw: random.Random, turn: int) -> str:
        return "".join(draw.choice(ascii_lowercase) for _ in range(self.config.level + 2))

    def puzzle(self, key: str) -> Puzzle:
        return Puzzle(f"{key}:", f"Repeat these letters exactly: {key}", key)

    def judge(self, attempt: Attempt) -> Verdict:
        return judge_text(attempt, lambda answer: answer == attempt.problem.answer)

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """The letters. Bad habit: the last two in alphabetical order. Accident: one letter is another."""
        habit, accident = slips(draw, careless)
        letters = list(problem.answer)
        if habit:
            letters[-2:] = sorted(letters[-2:])
        if accident:
            letters[draw.randrange(len(letters))] = draw.choice(ascii_lowercase)
        return worked("", "".join(letters))
