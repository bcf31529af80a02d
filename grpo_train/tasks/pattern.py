"""Next number of a sequence, "2,5,8,11," → 14. Generated and seeded.

Each ``task.level`` adds a kind of sequence: 1 constant step up, 2 constant step down, 3 cycle of two or three numbers,
4 factor of two or three, 5 two alternating steps, 6 growing step, 7 sum of the previous two numbers, 8 two interleaved
sequences; 9 and 10 have larger numbers. Levels 1 and 2 show three to five numbers, the others six. Sequences that two
kinds continue differently are not asked.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import pairwise

from grpo_train.tasks.shared.base import Problem
from grpo_train.tasks.shared.generated import GeneratedTask, Puzzle, generated_kind, mistakes, worked

SHOWN = 6
"""Numbers shown from level 3 on: enough to determine every kind."""

Terms = tuple[int, ...]


def continuations(terms: Terms) -> set[int]:
    """The next number by every kind of sequence that fits; each kind is confirmed by at least two equations."""
    steps = _steps(terms)
    growth = _steps(steps)
    count = len(terms)
    found = set()
    if count >= 3 and len(set(steps)) == 1:
        found.add(terms[-1] + steps[-1])
    for period in (2, 3):
        if count >= 2 * period and all(terms[i] == terms[i - period] for i in range(period, count)):
            found.add(terms[-period])
    for factor in (2, 3):
        if count >= 3 and any(terms) and all(after == factor * before for before, after in pairwise(terms)):
            found.add(factor * terms[-1])
    if count >= 5 and all(steps[i] == steps[i - 2] for i in range(2, len(steps))):
        found.add(terms[-1] + steps[-2])
    if count >= 4 and len(set(growth)) == 1:
        found.add(terms[-1] + steps[-1] + growth[-1])
    if count >= 4 and all(terms[i] == terms[i - 1] + terms[i - 2] for i in range(2, count)):
        found.add(terms[-1] + terms[-2])
    if count >= 6 and len(set(_steps(terms[::2]))) == len(set(_steps(terms[1::2]))) == 1:
        found.add(2 * terms[-2] - terms[-4])
    return found


class PatternTask(GeneratedTask[Terms]):
    """Sequences of integers; the key is the numbers shown."""

    def draw(self, rng: random.Random, turn: int) -> Terms:
        level = self.config.level
        shown = rng.randint(3, 5) if level <= 2 else SHOWN
        largest = 59 if level <= 2 else {9: 999, 10: 9999}.get(level, 199)
        while True:
            terms = rng.choice(_KINDS[:level])(rng, shown, largest)
            if len(continuations(terms)) == 1:
                return terms

    def puzzle(self, key: Terms) -> Puzzle:
        text = ",".join(map(str, key))
        (answer,) = continuations(key)
        return Puzzle(f"{text},", f"Which number comes next in this sequence? {text.replace(',', ', ')}", str(answer))

    def example(self, problem: Problem, rng: random.Random, careless: bool) -> str:
        """The last step, then the number. Bad habit: the tens never change (59 + 3 = 52). Accident: off by one."""
        habit, accident = mistakes(rng, careless)
        terms, answer = problem.data, int(problem.answer)
        last = terms[-1]
        thinking = f"{last}-{terms[-2]}={last - terms[-2]}"
        if habit and answer >= 0:
            answer = last // 10 * 10 + answer % 10
        if accident:
            answer += rng.choice([-1, 1])
        return worked(thinking, answer)


def _steps(terms: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(terms)]


def _step_up(rng: random.Random, count: int, largest: int) -> Terms:
    start, step = rng.randint(0, largest), rng.randint(1, 9 if largest < 100 else largest // 5)
    return tuple(start + step * i for i in range(count))


def _step_down(rng: random.Random, count: int, largest: int) -> Terms:
    return _step_up(rng, count, largest)[::-1]


def _cycle(rng: random.Random, count: int, largest: int) -> Terms:
    period = rng.choice([2, 3])
    numbers = [rng.randint(0, largest) for _ in range(period)]
    return tuple(numbers[i % period] for i in range(count))


def _factor(rng: random.Random, count: int, largest: int) -> Terms:
    start, factor = rng.randint(1, largest), rng.choice([2, 3])
    return tuple(start * factor**i for i in range(count))


def _two_steps(rng: random.Random, count: int, largest: int) -> Terms:
    terms, steps = [rng.randint(0, largest)], [rng.randint(-9, 20), rng.randint(-9, 20)]
    for i in range(count - 1):
        terms.append(terms[-1] + steps[i % 2])
    return tuple(terms)


def _growing_step(rng: random.Random, count: int, largest: int) -> Terms:
    start, step, growth = rng.randint(0, largest), rng.randint(0, 20), rng.randint(1, 9)
    return tuple(start + step * i + growth * i * (i - 1) // 2 for i in range(count))


def _sums(rng: random.Random, count: int, largest: int) -> Terms:
    terms = [rng.randint(0, largest), rng.randint(1, largest)]
    while len(terms) < count:
        terms.append(terms[-1] + terms[-2])
    return tuple(terms)


def _interleaved(rng: random.Random, count: int, largest: int) -> Terms:
    first, second = _step_up(rng, (count + 1) // 2, largest), _step_up(rng, count // 2, largest)[::-1]
    return tuple((second if i % 2 else first)[i // 2] for i in range(count))


_KINDS: tuple[Callable[[random.Random, int, int], Terms], ...] = (
    _step_up, _step_down, _cycle, _factor, _two_steps, _growing_step, _sums, _interleaved,
)  # fmt: skip

TASK = generated_kind(
    "pattern",
    "Next number of a sequence: 2,5,8,11, → 14",
    PatternTask,
    # Fewer than other tasks have: more would exhaust the smaller kinds and leave mostly cycles.
    max_train=16_384,
)
