"""Conversion of a number from one base to another, "13 10>2=" → 1101. Generated and seeded.

``task.level`` L: numbers below 512 * 2**L. Bases: levels 1 and 2 convert between 10 and 2; 3 and 4 also 8 and 16; 5 and
6 between 10 and any of 2 to 16; from 7 on between any two.
"""

from __future__ import annotations

import random
import re

from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

DIGITS = "0123456789abcdef"

Conversion = tuple[int, int, int]
"""Number, source base, target base."""


def in_base(number: int, base: int) -> str:
    """The lowercase digits of a non-negative integer, base 2 to 16."""
    digits = ""
    while number or not digits:
        number, digit = divmod(number, base)
        digits = DIGITS[digit] + digits
    return digits


class BaseConversionTask(GeneratedTask[Conversion]):
    """Conversions of numbers from 2 on."""

    def draw(self, rng: random.Random, turn: int) -> Conversion:
        level = self.config.level
        number = rng.randrange(2, 512 * 2**level)
        if level >= 7:
            source, target = rng.sample(range(2, 17), 2)
            return number, source, target
        others = [2] if level <= 2 else [2, 8, 16] if level <= 4 else [base for base in range(2, 17) if base != 10]
        other = rng.choice(others)
        return (number, 10, other) if rng.random() < 0.5 else (number, other, 10)

    def puzzle(self, key: Conversion) -> Puzzle:
        number, source, target = key
        digits = in_base(number, source)
        return Puzzle(
            f"{digits} {source}>{target}=",
            f"Write the base {source} number {digits} in base {target}, digits only.",
            in_base(number, target),
        )

    def judge(self, attempt: Attempt) -> Verdict:
        """Judge the digits; case and leading zeros are ignored."""
        return judge_text(attempt, lambda answer: self.same_answer(answer, attempt.problem.answer))

    def same_answer(self, one: str, other: str) -> bool:
        digits = [text.lower().lstrip("0") for text in (one, other)]
        return digits[0] == digits[1] and all(re.fullmatch("[0-9a-f]+", text) for text in digits)

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """The value digit by digit: repeated division from base 10 (the last remainder is the first digit), Horner's
        scheme to base 10. Bad habit: a first remainder or last digit of 0 is omitted. Accident: one digit is off."""
        habit, accident = mistakes(rng, careless)
        number, source, target = problem.data
        base = target if source == 10 else source
        digits = [DIGITS.index(digit) for digit in in_base(number, base)]
        if habit and digits[-1] == 0:
            digits.pop()
        if accident:
            index = rng.randrange(len(digits))
            digits[index] = (digits[index] + 1) % base
        running = [digits[0]]
        for digit in digits[1:]:
            running.append(running[-1] * base + digit)
        answer = "".join(DIGITS[digit] for digit in digits) if source == 10 else in_base(running[-1], target)
        return worked(",".join(map(str, running[::-1] if source == 10 else running)), answer)


TASK = generated_kind("base_conversion", "Number in another base: 13 10>2= → 1101", BaseConversionTask)
