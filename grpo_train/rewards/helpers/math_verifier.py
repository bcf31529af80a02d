"""Helper script for math-verify, used by :mod:`grpo_train.rewards.math_answer`.

A request {"gold": LATEX, "answer": LATEX} returns true, false, or the reason why they cannot be compared: for rewards.
A request {"gold": LATEX, "text": TEXT} returns math-verify's own verdict on the last boxed or final answer of a text,
as in published figures.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

DIGITS = 30
TOLERANCE = 1e-12
"""Relative. math-verify rounds to six decimals, so that 1/2^99 equals 1/2^98 (its issue #14)."""


def prepare() -> Callable[[Any], bool | str]:
    """Import math-verify, with its README's settings for rewards, and return the function that answers requests.

    It has answered already, so that the time limit of an answer does not cover what happens once.
    """
    import logging

    from latex2sympy2_extended import NormalizationConfig
    from math_verify import ExprExtractionConfig, LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    plain = NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=False, nits=False, boxed="all", equations=False
    )
    latex = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0, normalization_config=plain)

    def read(text: str) -> list[Any]:
        # Without math-verify's own timeouts, which need SIGALRM; this process has its own limit.
        parsed: list[Any] = parse(
            rf"\boxed{{{text}}}", [latex], fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
        )
        return parsed

    # As in math-verify's README and lighteval's MATH tasks: a box comes first, then other LaTeX and plain numbers.
    published = [LatexExtractionConfig(boxed_match_priority=0), ExprExtractionConfig()]

    def own_verdict(gold: str, text: str) -> bool:
        without_limit: Any = {"parsing_timeout": None, "raise_on_error": False}
        expected = parse(rf"\boxed{{{gold}}}", published[:1], **without_limit)
        return bool(verify(expected, parse(text, published, **without_limit), timeout_seconds=None))

    def answer(question: Any) -> bool | str:
        if "text" in question:
            return own_verdict(question["gold"], question["text"])
        gold, given = read(question["gold"]), read(question["answer"])
        if not gold or not given:
            return "unreadable" if gold else "gold_unreadable"
        equal = verify(gold, given, strict=True, timeout_seconds=None, raise_on_error=True)
        return bool(equal) and is_close(gold[0], given[0])

    # The first comparison compiles patterns and fills sympy's caches: a second of CPU time that no answer should pay.
    answer({"gold": "x^2+2x+1", "answer": "(x+1)^2"})
    return answer


def is_close(gold: Any, given: Any) -> bool:
    """Whether corresponding numbers differ by at most :data:`TOLERANCE`.

    Checked where both values have the same structure; math-verify decides the rest.
    """
    from sympy import Expr, FiniteSet, MatrixBase, Tuple

    if isinstance(gold, FiniteSet) or isinstance(given, FiniteSet):
        if not (isinstance(gold, FiniteSet) and isinstance(given, FiniteSet)) or len(gold) != len(given):
            return False
        return all(any(is_close(one, other) for other in given) for one in gold)
    if isinstance(gold, Tuple | MatrixBase) and isinstance(given, Tuple | MatrixBase):
        return len(gold) == len(given) and all(map(is_close, gold, given))
    if not (isinstance(gold, Expr) and isinstance(given, Expr) and gold.is_number and given.is_number):
        return True
    one, other = gold.evalf(DIGITS), given.evalf(DIGITS)
    return bool(abs(one - other) <= TOLERANCE * max(abs(one), abs(other)))
