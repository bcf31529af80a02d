"""base_conversion: a whole number from one base to another, "13 10>2=" → 1101. Generated and seeded.

``task.level`` L: numbers below 512 * 2**L; between bases 10 and 2 at levels 1 and 2, at 3 and 4 also 8 and 16, at 5 and
6 between 10 and any of 2 to 16, from 7 on between any two.
"""

from __future__ import annotations

import random
import re

from grpo_train.config import schema
from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GENERATED_OPTIONS, GeneratedTask, Puzzle, slips, worked

LABEL = "base_conversion"
OPTIONS = GENERATED_OPTIONS
DIGITS = "0123456789abcdef"

Conversion = tuple[int, int, int]
"""The number, the base it is given in, the base asked for."""


def load(config: schema.Task) -> BaseConversionTask:
    """The task at ``config.level``."""
    return BaseConversionTask(name="base_conversion", label=LABEL, config=config)


def in_base(number: int, base: int) -> str:
    """The digits of a whole number that is not negative, base 2 to 16, in small letters."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, base)
        digits = DIGITS[digit] + digits
    return digits


class BaseConversionTask(GeneratedTask[Conversion]):
    """Numbers from 2 on."""

    def draw(self, draw: random.Random, turn: int) -> Conversion:
        level = self.config.level
        number = draw.randrange(2, 512 * 2**level)
        if level >= 7:
            given, asked = draw.sample(range(2, 17), 2)
            return number, given, asked
        others = [2] if level <= 2 else [2, 8, 16] if level <= 4 else [base for base in range(2, 17) if base != 10]
        other = draw.choice(others)
        return (number, 10, other) if draw.random() < 0.5 else (number, other, 10)

    def puzzle(self, key: Conversion) -> Puzzle:
        number, given, asked = key
        digits = in_base(number, given)
        return Puzzle(
            f"{digits} {given}>{asked}=",
            f"Write the base {given} number {digits} in base {asked}, digits only.",
            in_base(number, asked),
        )

    def judge(self, attempt: Attempt) -> Verdict:
        """Capital letters and leading zeros make no difference."""
        return judge_text(
            attempt,
            lambda answer: (
                bool(re.fullmatch("[0-9a-fA-F]+", answer)) and answer.lower().lstrip("0") == attempt.problem.answer
            ),
        )

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """The value digit by digit: repeated division from base 10 (the last remainder is the first digit), Horner's
        scheme to it. Bad habit: a first remainder, or a last digit, of 0 is left out. Accident: one digit is off."""
        habit, accident = slips(draw, careless)
        number, given, asked = problem.data
        base = asked if given == 10 else given
        digits = [DIGITS.index(digit) for digit in in_base(number, base)]
        if habit and digits[-1] == 0:
            digits.pop()
        if accident:
            place = draw.randrange(len(digits))
            digits[place] = (digits[place] + 1) % base
        running = [digits[0]]
        for digit in digits[1:]:
            running.append(running[-1] * base + digit)
        answer = "".join(DIGITS[digit] for digit in digits) if given == 10 else in_base(running[-1], asked)
        return worked(",".join(map(str, running[::-1] if given == 10 else running)), answer)
