"""Truth of statements about numbers, "47>85?" → no. Generated and seeded, half yes and half no.

``task.digits``: digits of each number. ``task.level`` L: (L + 1) // 2 comparisons joined by "and" and "or"; at even
levels some are negated. The two answers alternate, also among the statements with the same connectives, so that a
guess, a constant answer, or a guess from the connectives is correct half of the time.
"""

from __future__ import annotations

import random

from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

Clause = tuple[int, str, int, bool]
"""Left number, > or <, right number, whether the comparison is negated."""
Statement = tuple[tuple[Clause, ...], str]
"""Clauses, and the joints between them, & or |, from the left: ((A & B) | C)."""

_WORDS = {">": "greater than", "<": "less than", "&": "and", "|": "or"}


def truth_of(statement: Statement) -> bool:
    """Whether a statement is true, evaluated from the left."""
    clauses, joints = statement
    values = [((a > b) if sign == ">" else (a < b)) != negated for a, sign, b, negated in clauses]
    truth = values[0]
    for joint, value in zip(joints, values[1:], strict=True):
        truth = (truth and value) if joint == "&" else (truth or value)
    return truth


class ComparisonTask(GeneratedTask[Statement]):
    """Statements; those drawn at an even turn are true."""

    @property
    def variant(self) -> str:
        return f"level {self.config.level} digits {self.config.digits}"

    def draw(self, rng: random.Random, turn: int) -> Statement:
        level = self.config.level
        count = (level + 1) // 2
        # Joints are drawn before the answer is fixed: of statements drawn whole, three in four with a last "or" would
        # be true.
        joints = "".join(rng.choice("&|") for _ in range(count - 1))
        while True:
            statement = tuple(self._clause(rng, turn, level % 2 == 0) for _ in range(count)), joints
            if truth_of(statement) is (turn % 2 == 0):
                return statement

    def puzzle(self, key: Statement) -> Puzzle:
        clauses, joints = key
        short, long = _texts(clauses[0])
        for joint, clause in zip(joints, clauses[1:], strict=True):
            next_short, next_long = _texts(clause)
            short, long = f"({short}{joint}{next_short})", f"({long} {_WORDS[joint]} {next_long})"
        truth = "yes" if truth_of(key) else "no"
        return Puzzle(f"{short}?", f"Answer yes or no. Is it true that {long}?", truth)

    def judge(self, attempt: Attempt) -> Verdict:
        """Judge yes or no; case and a final period are ignored."""
        return judge_text(attempt, lambda answer: self.same_answer(answer, attempt.problem.answer))

    def same_answer(self, one: str, other: str) -> bool:
        return one.lower().removesuffix(".") == other.lower().removesuffix(".")

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """For each clause the first digits that differ, then the answer. Bad habit: only the units are compared.
        Accident: the answer is inverted."""
        habit, accident = mistakes(rng, careless)
        clauses, joints = problem.data
        reduced = [_reduced(clause, habit) for clause in clauses]
        truth = truth_of((tuple(reduced), joints)) != accident
        thinking = ",".join(f"{a}{sign}{b}" for a, sign, b, _ in reduced)
        return worked(thinking, "yes" if truth else "no")

    def _clause(self, rng: random.Random, turn: int, negations: bool) -> Clause:
        digits = self.config.digits
        low = 0 if digits == 1 else 10 ** (digits - 1)
        a = b = rng.randrange(low, 10**digits)
        while a == b:
            b = rng.randrange(low, 10**digits)
        if self.config.level <= 2:
            sign = "><"[turn // 2 % 2]  # turns 0 and 1 (yes, no) ask >, turns 2 and 3 ask <: the sign is not a hint
        else:
            sign = rng.choice("><")
        return a, sign, b, negations and rng.random() < 0.5


def _texts(clause: Clause) -> tuple[str, str]:
    """The compact form and the words of a clause."""
    a, sign, b, negated = clause
    return f"{'!' * negated}{a}{sign}{b}", f"{a} is {'not ' * negated}{_WORDS[sign]} {b}"


def _reduced(clause: Clause, units_only: bool) -> Clause:
    """The clause on the digits that decide it, or on the units."""
    a, sign, b, negated = clause
    if units_only:
        return a % 10, sign, b % 10, negated
    pairs = zip(str(a), str(b), strict=True)
    first, second = next((x, y) for x, y in pairs if x != y)
    return int(first), sign, int(second), negated


TASK = generated_kind("comparison", "Truth of a statement about numbers: 47>85? → no", ComparisonTask, max_train=16_384)
