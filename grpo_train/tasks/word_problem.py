"""One-step word problems, "Tom has 12 figs and gets 7 more." → 19. Generated and seeded.

Levels 1 to 4 of ``task.level`` add one operation each: plus, minus, times, divided by (without a remainder); from 5 on
an irrelevant number comes first. At level L, terms are below 10 + 10 L and factors below 8 + L.
"""

from __future__ import annotations

import random

from grpo_train.tasks.shared.base import Problem
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

NAMES = ("Tom", "Anna", "Ben", "Mia", "Sam", "Eva", "Leo", "Ida", "Max", "Zoe")
THINGS = ("figs", "apples", "eggs", "books", "pens", "flowers", "coins", "cards", "stones", "cups")
STORIES = (
    ("+", "{name} has {a} {things} and gets {b} more.", "How many {things} does {name} have now?"),
    ("+", "{name} buys {a} {things}, then {b} more.", "How many {things} does {name} buy in all?"),
    ("+", "There are {a} {things}; {name} adds {b}.", "How many {things} are there now?"),
    ("-", "{name} has {a} {things} and gives away {b}.", "How many {things} does {name} have left?"),
    ("-", "There are {a} {things}; {name} takes {b}.", "How many {things} are left?"),
    ("*", "{name} has {a} bags with {b} {things} each.", "How many {things} does {name} have in all?"),
    ("*", "{name} buys {a} {things} a day for {b} days.", "How many {things} does {name} buy in all?"),
    ("/", "{name} puts {a} {things} into {b} equal bags.", "How many {things} are in each bag?"),
    ("/", "{name} shares {a} {things} among {b} friends.", "How many {things} does each friend get?"),
)
"""Operation, story, question."""

Story = tuple[int, str, str, int, int, int]
"""Index into :data:`STORIES`, name, things, the two numbers in order, an irrelevant age (0: none)."""


def operation_value(operator: str, a: int, b: int) -> int:
    """a operator b; a division must come out even."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]


class WordProblemTask(GeneratedTask[Story]):
    """Stories about people and things, with two relevant numbers."""

    def draw(self, rng: random.Random, turn: int) -> Story:
        level = self.config.level
        operator = rng.choice("+-*/"[:level])
        story = rng.choice([index for index, (known, _, _) in enumerate(STORIES) if known == operator])
        top = 9 + 10 * level if operator in "+-" else 7 + level
        a, b = rng.randint(2, top), rng.randint(2, top)
        if operator == "-":
            a, b = max(a, b) + 1, min(a, b)
        elif operator == "/":
            a *= b
        return story, rng.choice(NAMES), rng.choice(THINGS), a, b, rng.randint(7, 60) if level >= 5 else 0

    def puzzle(self, key: Story) -> Puzzle:
        index, name, things, a, b, age = key
        operator, story, question = STORIES[index]
        text = (f"{name} is {age} years old. " if age else "") + story.format(name=name, things=things, a=a, b=b)
        return Puzzle(text, f"{text} {question.format(name=name, things=things)}", str(operation_value(operator, a, b)))

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """The equation, then its result. Bad habit: no carry, or the wrong operation (plus for minus and times, minus
        for divided by). Accident: off by one."""
        habit, accident = mistakes(rng, careless)
        index, _, _, a, b, _ = problem.data
        operator = STORIES[index][0]
        if habit:
            operator = {"+": "+", "-": "+", "*": "+", "/": "-"}[operator]
        result = operation_value(operator, a, b)
        if habit and STORIES[index][0] == "+" and a % 10 + b % 10 >= 10:
            result -= 10
        if accident:
            result += rng.choice([-1, 1])
        return worked(f"{a}{operator}{b}={result}", result)


TASK = generated_kind("word_problem", "One-step word problems: Tom has 12 figs and gets 7 more. → 19", WordProblemTask)
