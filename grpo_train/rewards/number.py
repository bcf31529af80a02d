"""Grader for numeric answers: exact, evaluates nothing, takes microseconds.

``strict`` mode requires the R1 format; ``flexible`` takes the last answer, with or without tags.
:mod:`grpo_train.rewards.tags` finds the answer, :mod:`grpo_train.rewards.number_parser` reads the number.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from grpo_train.rewards.number_parser import last_number, parse_number, units_differ
from grpo_train.rewards.tags import after_thoughts, last_tagged, strict_answer, tagged_verdict
from grpo_train.rewards.types import Attempt, Verdict

GSM8K_MARK = "####"
_CALCULATION = re.compile(r"<<[^<>\n]*>>")
"""GSM8K's notes for a calculator: "9 + 9 = <<9+9=18>>18"."""


@dataclass(frozen=True)
class NumberGrade:
    """Result of :func:`grade_number`."""

    correct: bool
    """The answer is the gold number, in the mode's format."""
    reason: str
    """``ok``, ``wrong``, ``no_close_think``, ``no_answer_tag``, ``multiple_answers``, ``text_before_answer``,
    ``trailing_text``, ``ambiguous`` (several numbers, or a hedge), ``not_numeric`` or ``gold_not_numeric``."""
    answer: str | None
    """Text taken as the answer; None if not found."""


def grade_number(completion: str, gold: str, mode: Literal["strict", "flexible"] = "strict") -> NumberGrade:
    """Compare the number that ``completion`` gives with ``gold``. Never hangs or raises on any text.

    A completion that is not a string counts as empty; ``gold`` is converted with ``str``. Raises ValueError for an
    unknown mode.
    """
    completion, gold = completion if isinstance(completion, str) else "", str(gold)
    prose = False
    if mode == "strict":
        answer, problem = strict_answer(completion)
    elif mode == "flexible":
        answer, prose = _flexible_answer(completion)
        problem = "not_numeric"
    else:
        raise ValueError(f"mode must be 'strict' or 'flexible', got {mode!r}")
    if answer is None:
        return NumberGrade(False, problem, None)
    expected = parse_number(gold)
    if isinstance(expected, str):
        return NumberGrade(False, "gold_not_numeric", answer)
    found = parse_number(answer, prose=prose)
    if isinstance(found, str):
        return NumberGrade(False, found, answer)
    correct = found == expected and not units_differ(answer, gold)
    return NumberGrade(correct, "ok" if correct else "wrong", answer)


def judge_number(attempt: Attempt) -> Verdict:
    """Compare the answer with the gold number, in the strict and in the flexible reading."""
    gold = attempt.problem.answer
    strict = grade_number(attempt.text, gold, mode="strict")
    flexible = grade_number(attempt.text, gold, mode="flexible")
    return tagged_verdict(attempt, strict.answer, strict.reason, flexible=flexible.correct)


def _flexible_answer(completion: str) -> tuple[str | None, bool]:
    """The last answer (in the last tag, else after the last ``####``, else the last number); whether it is prose."""
    tagged = last_tagged(completion)
    if tagged is not None:
        return tagged, False
    text = _CALCULATION.sub("", after_thoughts(completion))
    if GSM8K_MARK in text:
        return text.rpartition(GSM8K_MARK)[2].partition("\n")[0].strip(), False
    return last_number(text), True
