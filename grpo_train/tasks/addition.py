"""Addition of two numbers, "47+85=": generated and seeded, with a held-out split. No data, no network."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import lru_cache

from grpo_train.config import schema
from grpo_train.rewards.number import judge_number
from grpo_train.tasks.shared.base import Attempt, Problem, Split, TaskDefaults, TaskKind, Verdict
from grpo_train.tasks.shared.generated import HELD_OUT, MAX_TRAIN, mistakes, worked


def load(config: schema.TaskConfig) -> AdditionTask:
    """The task for ``config.digits``."""
    return AdditionTask(name="addition", label="addition", config=config)


def prompt_of(a: int, b: int) -> str:
    """The prompt, as short as possible: rollout time of a tiny model grows with every token."""
    return f"{a}+{b}="


def worked_example(a: int, b: int, forget_carry: bool = False, miscount: int = 0) -> str:
    """A completion for ``a+b=``: the digit sums from the right, then the answer that follows from them."""
    units = max(a % 10 + b % 10 + miscount, 0)
    carry = 0 if forget_carry else units // 10
    tens = a // 10 + b // 10 + carry
    thinking = f"{a % 10}+{b % 10}={units},{a // 10}+{b // 10}+{carry}={tens}"
    return worked(thinking, 10 * tens + units % 10)


@lru_cache(maxsize=8)
def addition_splits(digits: int) -> dict[Split, list[tuple[int, int]]]:
    """All pairs of ``digits``-digit numbers in one seeded order: held-out pairs first, then training pairs.

    Independent of ``run.seed``, so that every run and the tiny model's warm start hold out the same pairs.
    """
    low = 0 if digits == 1 else 10 ** (digits - 1)
    count = 10**digits - low
    total = count * count
    held_out = min(HELD_OUT, total // 5)
    drawn = random.Random(f"addition {digits}").sample(range(total), min(total, held_out + MAX_TRAIN))
    pairs = [(low + index // count, low + index % count) for index in drawn]
    return {"test": pairs[:held_out], "train": pairs[held_out:]}


@dataclass(frozen=True)
class AdditionTask(TaskDefaults):
    """Sums of two numbers with ``task.digits`` digits each."""

    def rows(self, split: Split) -> list[tuple[int, int]]:
        return addition_splits(self.config.digits)[split]

    def problem(self, split: Split, index: int) -> Problem:
        a, b = self.rows(split)[index]
        return Problem(index=index, prompt=prompt_of(a, b), answer=str(a + b), question=f"{a}+{b}")

    def judge(self, attempt: Attempt) -> Verdict:
        return judge_number(attempt)

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """See :func:`worked_example`. Bad habit: carries are forgotten. Accident: units are off by one."""
        forget, miscounted = mistakes(rng, careless)
        a, b = map(int, problem.question.split("+"))
        return worked_example(a, b, forget, rng.choice([-1, 1]) if miscounted else 0)


TASK = TaskKind("addition", "Sum of two numbers: 47+85= → 132", load, load_worked=load)
