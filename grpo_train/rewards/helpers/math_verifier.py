"""The process in which math-verify runs: a script that :mod:`grpo_train.rewards.math_answer` starts.

Asked {"gold": LATEX, "answer": LATEX}, it answers true, false, or the reason why it cannot tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

DIGITS = 30
TOLERANCE = 1e-12
"""Relative. math-verify rounds to six decimals, and so takes 1/2^99 for 1/2^98 (its issue #14)."""


def prepare() -> Callable[[Any], bool | str]:
    """Import math-verify with the settings that its README gives for rewards; returns what answers a question."""
    import logging

    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    logging.disable(logging.CRITICAL)
    plain = NormalizationConfig(
        basic_latex=True, units=True, malformed_operators=False, nits=False, boxed="all", equations=False
    )
    latex = LatexExtractionConfig(try_extract_without_anchor=False, boxed_match_priority=0, normalization_config=plain)

    def read(text: str) -> list[Any]:
        # Without math-verify's own timeouts, which need SIGALRM and are what this process is for.
        parsed: list[Any] = parse(
            rf"\boxed{{{text}}}", [latex], fallback_mode="no_fallback", parsing_timeout=None, raise_on_error=True
        )
        return parsed

    def answer(question: Any) -> bool | str:
        gold, said = read(question["gold"]), read(question["answer"])
        if not gold or not said:
            return "unreadable" if gold else "gold_unreadable"
        equal = verify(gold, said, strict=True, timeout_seconds=None, raise_on_error=True)
        return bool(equal) and alike(gold[0], said[0])

    return answer


def alike(gold: Any, said: Any) -> bool:
    """No number in one differs from its partner in the other by more than :data:`TOLERANCE`, which is checked wherever
    both are built alike; the rest is left to math-verify.
    """
    from sympy import Expr, FiniteSet, MatrixBase, Tuple

    if isinstance(gold, FiniteSet) or isinstance(said, FiniteSet):
        if not (isinstance(gold, FiniteSet) and isinstance(said, FiniteSet)) or len(gold) != len(said):
            return False
        return all(any(alike(one, other) for other in said) for one in gold)
    if isinstance(gold, Tuple | MatrixBase) and isinstance(said, Tuple | MatrixBase):
        return len(gold) == len(said) and all(map(alike, gold, said))
    if not (isinstance(gold, Expr) and isinstance(said, Expr) and gold.is_number and said.is_number):
        return True
    one, other = gold.evalf(DIGITS), said.evalf(DIGITS)
    return bool(abs(one - other) <= TOLERANCE * max(abs(one), abs(other)))


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[3])  # was this directory, whose files are no top-level modules
    from grpo_train.rewards.helpers.serve import serve

    serve(prepare)
