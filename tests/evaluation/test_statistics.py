"""Intervals, pass@k, maj@k and paired comparisons against brute force and published figures."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_train.evaluation.report.statistics import (
    bootstrap_mean,
    compare_paired,
    estimate_share,
    histogram,
    majority,
    majority_at_k,
    mcnemar,
    pass_at_k,
    percentiles,
    reported_ks,
    wilson_interval,
)
from grpo_train.evaluation.report.summary import majority_curve, votes_of
from grpo_train.tasks.shared.graders import grader_of


@pytest.mark.parametrize(
    ("correct", "total", "low", "high"),
    [(0, 10, 0.0, 0.277533), (10, 10, 0.722467, 1.0), (5, 10, 0.236593, 0.763407), (81, 263, 0.255289, 0.366229)],
)
def test_wilson_interval(correct: int, total: int, low: float, high: float) -> None:
    """The last case is Newcombe's (1998) example."""
    assert wilson_interval(correct, total) == pytest.approx((low, high), abs=1e-4)


def test_wilson_interval_without_samples() -> None:
    assert wilson_interval(0, 0) == (0.0, 1.0)


@given(st.integers(1, 8), st.data())
def test_pass_at_k_matches_enumeration(n: int, data: st.DataObject) -> None:
    correct, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    draws = list(itertools.combinations([True] * correct + [False] * (n - correct), k))
    assert pass_at_k(n, correct, k) == pytest.approx(sum(any(draw) for draw in draws) / len(draws), abs=1e-12)


@pytest.mark.parametrize("k", [0, 5])
def test_pass_at_k_rejects_k_out_of_range(k: int) -> None:
    with pytest.raises(ValueError, match="cannot be estimated from 4 samples"):
        pass_at_k(4, 1, k)


def test_reported_ks_are_powers_of_two_and_n() -> None:
    assert [reported_ks(n) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("answers", "credit"),
    [
        (["7", "7", "8"], 1.0),
        (["8", "8", "7"], 0.0),
        (["7", "8"], 0.5),
        (["7", "8", "9"], 1 / 3),
        ([None, None, "7"], 1.0),  # None does not vote
        ([None, None], 0.0),
        (["7", "7", "8", "8", "9"], 0.5),
    ],
)
def test_majority_splits_ties(answers: list[str | None], credit: float) -> None:
    assert majority(answers, [answer == "7" for answer in answers]) == pytest.approx(credit)


@given(st.lists(st.sampled_from([None, "7", "8", "9"]), min_size=1, max_size=7))
def test_majority_matches_a_fair_draw_among_ties(answers: list[str | None]) -> None:
    votes = Counter(answer for answer in answers if answer)
    tied = [answer for answer in votes if votes[answer] == max(votes.values())]
    expected = sum(answer == "7" for answer in tied) / len(tied) if tied else 0.0
    assert majority(answers, [answer == "7" for answer in answers]) == pytest.approx(expected)


def test_maj_at_k_averages_whole_blocks() -> None:
    answers: list[str | None] = ["7", "7", "8", "8", "8", "7", "9"]
    correct = [answer == "7" for answer in answers]
    assert majority_at_k(answers, correct, 2) == pytest.approx((1 + 0 + 0.5) / 3)
    assert majority_at_k(answers, correct, 3) == pytest.approx((1 + 0) / 2)
    assert majority_at_k(answers, correct, 1) == pytest.approx(3 / 7)


def sampled(text: str | None, correct: bool = False, reason: str = "wrong") -> dict[str, Any]:
    return {"answer": text, "correct": correct, "formatted": text is not None, "reason": reason}


@pytest.mark.parametrize(
    ("grader", "answers", "gold", "maj"),
    [
        ("text", ["Paris", "paris", "PARIS", "London", "London"], "Paris", 1.0),
        ("text", ["London", "london", "LONDON", "Paris", "Paris"], "Paris", 0.0),
        ("number", ["7", "7.0", "$7", "8", "8"], "7", 1.0),
        ("number", ["8", "8.00", "$8", "7", "7"], "7", 0.0),
        ("math", [r"\frac{1}{2}", "0.5", "1/2", "2", "2"], "0.5", 1.0),
        ("math", ["x+1", "1+x", "2", "0.5", "0.5"], "0.5", 0.5),
    ],
)
def test_votes_are_counted_by_the_equality_of_the_grader(
    grader: str, answers: list[str], gold: str, maj: float
) -> None:
    same = grader_of(grader).same
    votes = votes_of([sampled(answer, same(answer, gold)) for answer in answers], same)
    assert majority_curve([votes])[5].value == maj


def test_answers_that_cannot_be_judged_equal_themselves() -> None:
    rows = [sampled("a", reason="grader_timeout"), sampled("b"), sampled(None), sampled("a", reason="grader_timeout")]
    assert votes_of([*rows, sampled("B", correct=True)], lambda one, other: True) == [1, 2, None, 1, 0]


@given(st.integers(0, 12), st.integers(0, 12))
def test_mcnemar_matches_enumeration(gained: int, lost: int) -> None:
    n, less = gained + lost, min(gained, lost)
    as_uneven = sum(math.comb(n, heads) for heads in range(n + 1) if min(heads, n - heads) <= less)
    assert mcnemar(gained, lost) == pytest.approx(float(Fraction(as_uneven, 2**n)), abs=1e-12)


def test_mcnemar_with_many_flips() -> None:
    assert mcnemar(900, 1100) == pytest.approx(8.6e-6, rel=0.05)  # 2 ** n overflows a float
    assert mcnemar(6, 1) == 0.125


def test_bootstrap_agrees_with_the_standard_error() -> None:
    values = np.random.default_rng(1).random(400).tolist()
    found = bootstrap_mean(values)
    half = 1.96 * np.std(values) / math.sqrt(len(values))
    assert found.value == pytest.approx(np.mean(values))
    assert (found.value - found.low, found.high - found.value) == pytest.approx((half, half), rel=0.1)
    assert found == bootstrap_mean(values)


def test_bootstrap_of_two_problems() -> None:
    """The four draws of {0, 1} with replacement have means 0, 0.5, 0.5 and 1."""
    found = bootstrap_mean([0.0, 1.0])
    assert (found.value, found.low, found.high) == (0.5, 0.0, 1.0)


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=20))
def test_estimates_lie_in_their_intervals(table: list[list[bool]]) -> None:
    found = estimate_share(table)
    assert 0 <= found.low <= found.value + 1e-12
    assert found.value - 1e-12 <= found.high <= 1
    assert found.value == pytest.approx(sum(map(sum, table)) / (3 * len(table)))


def test_equal_shares_keep_an_interval() -> None:
    for share in (False, True):
        found = estimate_share([[share, share]] * 10)
        assert (found.value, found.low, found.high) == pytest.approx((float(share), *wilson_interval(10 * share, 10)))


@pytest.mark.parametrize(("shares", "low", "high"), [([0.75], 0.1549, 0.9484), ([0.75] * 4, 0.3826, 0.8725)])
def test_equal_shares_between_0_and_1_keep_an_interval(shares: list[float], low: float, high: float) -> None:
    found = estimate_share([[True] * 3 + [False]] * len(shares))
    assert (found.value, found.low, found.high) == pytest.approx((0.75, low, high), abs=1e-3)


def test_equal_differences_keep_an_interval() -> None:
    found = compare_paired({1: [True, True]}, {1: [True, False]}).difference
    assert (found.value, found.low, found.high) == pytest.approx((0.5, -0.6902, 0.8967), abs=1e-3)


def test_one_sample_per_problem_uses_wilson() -> None:
    found = estimate_share([[True]] * 5 + [[False]] * 5)
    assert (found.low, found.high) == wilson_interval(5, 10)


def test_comparison_lists_gained_and_lost_problems() -> None:
    before = {1: [True], 2: [False], 3: [False], 4: [True], 9: [True]}
    now = {1: [True], 2: [True], 3: [True], 4: [False], 8: [True]}
    found = compare_paired(now, before)
    assert (found.n, found.gained, found.lost) == (4, (2, 3), (4,))
    assert found.difference.value == pytest.approx(0.25)
    assert found.p_value == mcnemar(2, 1)
    assert found.difference.low <= 0.25 <= found.difference.high


def test_half_of_the_samples_solve_a_problem() -> None:
    found = compare_paired({1: [True, True], 2: [True, False]}, {1: [True, False], 2: [False, False]})
    assert (found.gained, found.lost) == ((2,), ())
    assert found.difference.value == pytest.approx(0.5)


def test_comparison_without_shared_problems() -> None:
    found = compare_paired({1: [True]}, {2: [True]})
    assert (found.n, found.gained, found.lost, found.p_value) == (0, (), (), 1.0)
    assert math.isnan(found.difference.value)


def test_percentiles_and_histogram() -> None:
    assert percentiles([]) == {}
    assert percentiles([1, 2, 3, 4, 5])["p50"] == 3
    assert histogram([0, 5, 10], 10, bins=2) == {"edges": [0.0, 5.0, 10.0], "counts": [1, 2]}
