"""comparison: is a statement about numbers true, "47>85?" → no. Generated and seeded, as many yes as no.

``task.digits`` digits in each number. ``task.level`` L: (L + 1) // 2 comparisons joined by "and" and "or"; at even
levels some are negated. The two answers take turns, also among the statements with the same "and" and "or", so that a
guess, always one answer, or one by the joints, is right half of the time.
"""

from __future__ import annotations

import random

from grpo_train.config import schema
from grpo_train.rewards.text import judge_text
from grpo_train.tasks.shared.base import Attempt, Problem, Verdict
from grpo_train.tasks.shared.generated import GENERATED_OPTIONS, GeneratedTask, Puzzle, slips, worked

LABEL = "comparison"
OPTIONS = (*GENERATED_OPTIONS, "digits")
MAX_TRAIN = 16_384

Clause = tuple[int, str, int, bool]
"""Left number, > or <, right number, and whether "not" stands before it."""
Statement = tuple[tuple[Clause, ...], str]
"""Clauses, and what joins them from the left, & or |: ((A & B) | C)."""

_WORDS = {">": "greater than", "<": "less than", "&": "and", "|": "or"}


def load(config: schema.Task) -> ComparisonTask:
    """The task for ``config.digits`` and ``config.level``."""
    return ComparisonTask(name="comparison", label=LABEL, config=config, max_train=MAX_TRAIN)


def truth_of(statement: Statement) -> bool:
    """Whether it holds, joined from the left."""
    clauses, joints = statement
    values = [((a > b) if sign == ">" else (a < b)) != negated for a, sign, b, negated in clauses]
    truth = values[0]
    for joint, value in zip(joints, values[1:], strict=True):
        truth = (truth and value) if joint == "&" else (truth or value)
    return truth


class ComparisonTask(GeneratedTask[Statement]):
    """Statements; those with an even turn are true."""

    @property
    def variant(self) -> str:
        return f"level {self.config.level} digits {self.config.digits}"

    def draw(self, draw: random.Random, turn: int) -> Statement:
        level = self.config.level
        count = (level + 1) // 2
        # Before the answer is known: of statements drawn whole, three in four with a last "or" would be true.
        joints = "".join(draw.choice("&|") for _ in range(count - 1))
        while True:
            statement = tuple(self._clause(draw, turn, level % 2 == 0) for _ in range(count)), joints
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
        """ "Yes", "YES" and "yes." are yes."""
        return judge_text(attempt, lambda answer: answer.lower().removesuffix(".") == attempt.problem.answer)

    def example(self, problem: Problem, draw: random.Random, careless: bool) -> str:
        """Every clause: the first digits that differ, and whether it holds. Bad habit: only the units are compared.
        Accident: the answer is turned round."""
        habit, accident = slips(draw, careless)
        clauses, joints = problem.data
        seen = [_seen(clause, habit) for clause in clauses]
        truth = truth_of((tuple(seen), joints)) != accident
        thinking = ",".join(f"{a}{sign}{b}" for a, sign, b, _ in seen)
        return worked(thinking, "yes" if truth else "no")

    def _clause(self, draw: random.Random, turn: int, negations: bool) -> Clause:
        digits = self.config.digits
        low = 0 if digits == 1 else 10 ** (digits - 1)
        a = b = draw.randrange(low, 10**digits)
        while a == b:
            b = draw.randrange(low, 10**digits)
        if self.config.level <= 2:
            sign = "><"[turn // 2 % 2]  # turns 0 and 1 (yes, no) ask >, turns 2 and 3 ask <: a sign tells nothing
        else:
            sign = draw.choice("><")
        return a, sign, b, negations and draw.random() < 0.5


def _texts(clause: Clause) -> tuple[str, str]:
    a, sign, b, negated = clause
    return f"{'!' * negated}{a}{sign}{b}", f"{a} is {'not ' * negated}{_WORDS[sign]} {b}"


def _seen(clause: Clause, units_only: bool) -> Clause:
    """The clause about the digits that the pupil looks at."""
    a, sign, b, negated = clause
    if units_only:
        return a % 10, sign, b % 10, negated
    pairs = zip(str(a), str(b), strict=True)
    first, second = next((x, y) for x, y in pairs if x != y)
    return int(first), sign, int(second), negated
