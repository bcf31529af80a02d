"""word_problem: one-step stories, "Tom has 12 figs and gets 7 more." → 19. Generated and seeded.

``task.level`` L adds one operation each up to 4: plus, minus, times, divided by (always without a remainder); from 5 on
a number that does not matter is told first. Numbers to be added are below 10 + 10 L, factors below 8 + L.
"""

from __future__ import annotations

import random

from grpo_train.config import schema
from grpo_train.tasks.shared.base import Problem
from grpo_train.tasks.shared.generated import GENERATED_OPTIONS, GeneratedTask, Puzzle, slips, worked

LABEL = "word_problem"
OPTIONS = GENERATED_OPTIONS
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
"""Index of the story, name, things, the two numbers in the order told, an age that does not matter (0: not told)."""


def load(config: schema.Task) -> WordProblemTask:
    """The task at ``config.level``."""
    return WordProblemTask(name="word_problem", label=LABEL, config=config)


def value_of(operator: str, a: int, b: int) -> int:
    """a operator b, for numbers that divide."""
    return {"+": a + b, "-": a - b, "*": a * b, "/": a // b}[operator]


class WordProblemTask(GeneratedTask[Story]):
    """Stories with two numbers that matter, about people and things."""

    def draw(self, draw: random.Random, turn: int) -> Story:
        level = self.config.level
        operator = draw.choice("+-*/"[:level])
        story = draw.choice([index for index, (asked, _, _) in enumerate(STORIES) if asked == operator])
        top = 9 + 10 * level if operator in "+-" else 7 + level
        a, b = draw.randint(2, top), draw.randint(2, top)
        if operator == "-":
            a, b = max(a, b) + 1, min(a, b)
        elif operator == "/":
            a *= b
        return story, draw.choice(NAMES), draw.choice(THINGS), a, b, draw.randint(7, 60) if level >= 5 else 0

    def puzzle(self, key: Story) -> Puzzle:
        index, name, things, a, b, age = key
        operator, story, question = STORIES[index]
        told = (f"{name} is {age} years old. " if age else "") + story.format(name=name, things=things, a=a, b=b)
        return Puzzle(told, f"{told} {question.format(name=name, things=things)}", str(value_of(operator, a, b)))

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """The sum as it is, then its result. Bad habit: nothing is carried, or minus is taken for plus, times for plus,
        divided for minus. Accident: off by one."""
        habit, accident = slips(draw, careless)
        index, _, _, a, b, _ = problem.data
        operator = STORIES[index][0]
        if habit:
            operator = {"+": "+", "-": "+", "*": "+", "/": "-"}[operator]
        result = value_of(operator, a, b)
        if habit and STORIES[index][0] == "+" and a % 10 + b % 10 >= 10:
            result -= 10
        if accident:
            result += draw.choice([-1, 1])
        return worked(f"{a}{operator}{b}={result}", result)
