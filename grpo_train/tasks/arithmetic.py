"""Integer arithmetic with + - and *, "47-85=" → -38. Generated and seeded.

``task.digits``: digits of each number. ``task.operators``: which of + - * occur. ``task.level`` L: L operators in a row
(* before + and -).
"""

from __future__ import annotations

import random

from grpo_train.tasks.shared.base import Problem, TaskError
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

OPERATORS = "+-*"

Sum = tuple[tuple[int, ...], str]
"""Numbers, and the operators between them: ((47, 85), "-")."""


def expression_value(numbers: tuple[int, ...], operators: str) -> int:
    """The value: products first, then sums from the left."""
    terms = [numbers[0]]
    for operator, number in zip(operators, numbers[1:], strict=True):
        if operator == "*":
            terms[-1] *= number
        else:
            terms.append(number if operator == "+" else -number)
    return sum(terms)


class ArithmeticTask(GeneratedTask[Sum]):
    """Numbers of equal length with operators between them. Raises TaskError for an unknown operator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        operators = self.config.operators
        if not operators or set(operators) - set(OPERATORS):
            raise TaskError(f"task.operators: '{operators}' must be some of {OPERATORS}, for example \"+-\"")

    @property
    def variant(self) -> str:
        operators = "".join(sorted(set(self.config.operators)))
        return f"level {self.config.level} digits {self.config.digits} operators {operators}"

    def draw(self, rng: random.Random, turn: int) -> Sum:
        digits, level = self.config.digits, self.config.level
        low = 0 if digits == 1 else 10 ** (digits - 1)
        operators = sorted(set(self.config.operators))
        numbers = tuple(rng.randrange(low, 10**digits) for _ in range(level + 1))
        return numbers, "".join(rng.choice(operators) for _ in range(level))

    def puzzle(self, key: Sum) -> Puzzle:
        numbers, operators = key
        text = str(numbers[0]) + "".join(f" {o} {n}" for o, n in zip(operators, numbers[1:], strict=True))
        return Puzzle(f"{text.replace(' ', '')}=", f"What is {text}?", str(expression_value(numbers, operators)))

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """Units, then tens and above with the carry or borrow. A product, and each further operator, is one step.

        Bad habit: no carry or borrow. Accident: off by one.
        """
        habit, accident = mistakes(rng, careless)
        numbers, operators = problem.data
        error = rng.choice([-1, 1]) if accident else 0
        if operators == "*" or len(operators) > 1:
            running = [
                str(expression_value(numbers[: count + 1], operators[:count])) for count in range(1, len(operators))
            ]
            return worked(",".join(running), int(problem.answer) + error - (10 if habit else 0))
        a, b = numbers
        negative = operators == "-" and a < b
        if negative:
            a, b = b, a
        sign = 1 if operators == "+" else -1
        units = a % 10 + sign * (b % 10) + error
        carry = 0 if habit else units // 10
        tens = a // 10 + sign * (b // 10) + carry
        thinking = f"{a % 10}{operators}{b % 10}={units},{a // 10}{operators}{b // 10}{carry:+d}={tens}"
        result = 10 * tens + units % 10
        return worked(thinking, -result if negative else result)


TASK = generated_kind("arithmetic", "Integer arithmetic with + - and *: 47-85= → -38", ArithmeticTask)
