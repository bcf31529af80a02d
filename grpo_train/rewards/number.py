"""Grading an answer that is a number: exact, without evaluating anything, in microseconds.

Two modes: ``strict`` wants the R1 format, ``tolerant`` takes the last answer it finds, tags or not. Where an answer
stands is in :mod:`grpo_train.rewards.tags`, what counts as "saying the number" in
:mod:`grpo_train.rewards.spoken_number`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpo_train.rewards.spoken_number import last_number, parse_number
from grpo_train.rewards.tags import after_thoughts, last_tagged, strict_answer

GSM8K_MARK = "####"


@dataclass(frozen=True)
class NumberGrade:
    """A verdict and its reason."""

    correct: bool
    """The answer is the gold number, in the format that the mode asks for."""
    reason: str
    """``ok``, ``wrong``, ``no_close_think``, ``no_answer_tag``, ``multiple_answers``, ``text_before_answer``,
    ``trailing_text``, ``ambiguous`` (more than one number, or a hedge), ``not_numeric``, or ``gold_not_numeric``."""
    answer: str | None
    """The text taken as the answer; None where there is none."""

    @property
    def formatted(self) -> bool:
        """The format is right, whatever the answer (strict mode)."""
        return self.reason in {"ok", "wrong", "ambiguous", "not_numeric", "gold_not_numeric"}


def grade_number(completion: str, gold: str, mode: Literal["strict", "tolerant"] = "strict") -> NumberGrade:
    """Does ``completion`` give the number ``gold``? Never raises and never hangs, whatever the text.

    What is no text counts as an empty completion; a gold number that is none, as what it is printed as.
    """
    completion, gold = completion if isinstance(completion, str) else "", str(gold)
    prose = False
    if mode == "strict":
        answer, problem = strict_answer(completion)
    elif mode == "tolerant":
        answer, prose = _tolerant_answer(completion)
        problem = "not_numeric"
    else:
        raise ValueError(f"mode must be 'strict' or 'tolerant', got {mode!r}")
    if answer is None:
        return NumberGrade(False, problem, None)
    expected = parse_number(gold)
    if isinstance(expected, str):
        return NumberGrade(False, "gold_not_numeric", answer)
    found = parse_number(answer, prose=prose)
    if isinstance(found, str):
        return NumberGrade(False, found, answer)
    return NumberGrade(found == expected, "ok" if found == expected else "wrong", answer)


def _tolerant_answer(completion: str) -> tuple[str | None, bool]:
    """The last answer (the last tag's, else behind the last ``####``, else the last number) and whether it is prose."""
    tagged = last_tagged(completion)
    if tagged is not None:
        return tagged, False
    text = after_thoughts(completion)
    if GSM8K_MARK in text:
        return text.rpartition(GSM8K_MARK)[2].partition("\n")[0].strip(), False
    return last_number(text), True
