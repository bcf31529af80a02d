"""Generated programming requests of ten levels, each with the expected output. Torch-free."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grpo_train.tasks.shared.generated import distinct

WORDS = (
    "banana", "lantern", "pepper", "giraffe", "morning", "balloon", "kitchen", "orchard", "teapot", "window",
    "library", "compass", "harbour", "meadow", "ribbon", "thunder", "violin", "walnut", "yellow", "puzzle",
)  # fmt: skip


@dataclass(frozen=True)
class CodeRequest:
    """A request for a program."""

    text: str
    output: str
    """Expected output, up to white space."""


def requests(level: int, count: int) -> list[CodeRequest]:
    """The first ``count`` different requests of a level, 1 to 10, in a fixed order.

    Numbers go up to 10 x level; from levels 4, 7 and 10 on, a request has 2, 3 and 4 parts.
    """
    parts = (level + 2) // 3

    def draw(rng: random.Random, turn: int) -> CodeRequest:
        return _joined([rng.choice(_KINDS)(rng, 10 * level) for _ in range(parts)])

    return distinct(draw, random.Random(f"code requests {level}"), count)


def _joined(parts: list[CodeRequest]) -> CodeRequest:
    first, *rest = parts
    text = f"Print {first.text}." + "".join(f" Then print {part.text}." for part in rest)
    return CodeRequest(text, "\n".join(part.output for part in parts))


def _count(rng: random.Random, top: int) -> CodeRequest:
    low = rng.randint(0, top)
    high = low + rng.randint(2, 9)
    return CodeRequest(f"the numbers from {low} to {high}, one per line", _lines(range(low, high + 1)))


def _squares(rng: random.Random, top: int) -> CodeRequest:
    number, first = rng.randint(2, 9), rng.randint(1, top)
    return CodeRequest(
        f"the squares of {number} numbers in a row, beginning with {first}, one per line",
        _lines(value * value for value in range(first, first + number)),
    )


def _sum(rng: random.Random, top: int) -> CodeRequest:
    low = rng.randint(1, top)
    high = low + rng.randint(2, top)
    return CodeRequest(f"the sum of all whole numbers from {low} to {high}", str(sum(range(low, high + 1))))


def _divisible(rng: random.Random, top: int) -> CodeRequest:
    by, high = rng.randint(2, 9), rng.randint(10, top + 20)
    return CodeRequest(f"the numbers from 1 to {high} that {by} divides, one per line", _lines(range(by, high + 1, by)))


def _divisor(rng: random.Random, top: int) -> CodeRequest:
    factor, a, b = rng.randint(1, 9), rng.randint(2, top), rng.randint(2, top)
    one, other = factor * a, factor * b
    return CodeRequest(f"the greatest common divisor of {one} and {other}", str(math.gcd(one, other)))


def _fibonacci(rng: random.Random, top: int) -> CodeRequest:
    a, b, number = rng.randint(0, 9), rng.randint(1, top), rng.randint(3, 9)
    values = [a, b]
    while len(values) < number:
        values.append(values[-1] + values[-2])
    return CodeRequest(
        f"{number} numbers, one per line: {a}, {b}, and then each the sum of the two before it", _lines(values[:number])
    )


def _repeat(rng: random.Random, top: int) -> CodeRequest:
    word, times = rng.choice(WORDS), rng.randint(2, 9)
    return CodeRequest(f"the word {word} {times} times, each on its own line", _lines([word] * times))


def _reverse(rng: random.Random, top: int) -> CodeRequest:
    one, other = rng.sample(WORDS, 2)
    return CodeRequest(f"the words {one} and {other} in one line, each written backwards", f"{one[::-1]} {other[::-1]}")


def _sorted(rng: random.Random, top: int) -> CodeRequest:
    values = [rng.randint(0, 3 * top) for _ in range(rng.randint(4, 6))]
    return CodeRequest(f"these numbers in ascending order, one per line: {_listed(values)}", _lines(sorted(values)))


def _largest(rng: random.Random, top: int) -> CodeRequest:
    values = [rng.randint(0, 3 * top) for _ in range(rng.randint(4, 6))]
    return CodeRequest(
        f"the largest of these numbers less the smallest: {_listed(values)}", str(max(values) - min(values))
    )


def _stars(rng: random.Random, top: int) -> CodeRequest:
    rows, sign = rng.randint(2, 9), rng.choice("*#+@")
    return CodeRequest(
        f"a triangle of {rows} lines, with one {sign} in the first and one more in each",
        _lines(sign * row for row in range(1, rows + 1)),
    )


def _binary(rng: random.Random, top: int) -> CodeRequest:
    value = rng.randint(2, 20 * top)
    return CodeRequest(f"{value} as a binary number, digits alone", f"{value:b}")


def _table(rng: random.Random, top: int) -> CodeRequest:
    value, times = rng.randint(2, top), rng.randint(3, 9)
    return CodeRequest(
        f"the first {times} multiples of {value}, one per line", _lines(value * k for k in range(1, times + 1))
    )


def _letters(rng: random.Random, top: int) -> CodeRequest:
    words = rng.sample(WORDS, 2)
    letter, times = Counter("".join(words)).most_common(1)[0]
    return CodeRequest(f"how often the letter {letter} occurs in {' '.join(words)}", str(times))


_KINDS: tuple[Callable[[random.Random, int], CodeRequest], ...] = (
    _count, _squares, _sum, _divisible, _divisor, _fibonacci, _repeat, _reverse, _sorted, _largest, _stars, _binary,
    _table, _letters,
)  # fmt: skip


def _listed(values: list[int]) -> str:
    return ", ".join(map(str, values))


def _lines(values: Iterable[object]) -> str:
    return "\n".join(map(str, values))
