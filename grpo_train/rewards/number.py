"""Grading an answer that is a number: exact, without evaluating anything, in microseconds.

Two modes. ``strict`` wants the R1 format: an optional leading ``<think>`` (the prompt may hold it), reasoning,
``</think>``, white space or nothing, ``<answer>N</answer>`` and nothing after it. ``tolerant`` takes the last answer
it finds, tags or not. What counts as "saying the number" is in :mod:`grpo_train.rewards.spoken_number`.

The reference (understand-r1-zero, ``oat_math_grader.answer_tag_reward_fn``) wants exactly one space between the tags
and takes the text after the last ``<answer>``, so that a second guess counts; here white space is free and a second
answer is refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from grpo_train.rewards.spoken_number import last_number, parse_number

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"
CLOSE_THINK = "</think>"
GSM8K_MARK = "####"


@dataclass(frozen=True)
class NumberGrade:
    """A verdict and its reason."""

    correct: bool
    """The answer is the gold number, in the format that the mode asks for."""
    reason: str
    """``ok``, ``wrong``, ``no_close_think``, ``no_answer_tag``, ``multiple_answers``, ``text_before_answer`` (between
    ``</think>`` and ``<answer>``), ``trailing_text``, ``ambiguous`` (more than one number, or a hedge),
    ``not_numeric``, or ``gold_not_numeric``."""
    answer: str | None
    """The text taken as the answer; None where there is none."""

    @property
    def formatted(self) -> bool:
        """The format is right, whatever the answer (strict mode)."""
        return self.reason in {"ok", "wrong", "ambiguous", "not_numeric", "gold_not_numeric"}


def grade_number(completion: str, gold: str, mode: Literal["strict", "tolerant"] = "strict") -> NumberGrade:
    """Does ``completion`` give the number ``gold``? Never raises and never hangs, whatever the text."""
    if mode == "strict":
        answer, problem = strict_answer(completion)
    elif mode == "tolerant":
        answer, problem = _tolerant_answer(completion)
    else:
        raise ValueError(f"mode must be 'strict' or 'tolerant', got {mode!r}")
    if answer is None:
        return NumberGrade(False, problem, None)
    expected = parse_number(gold)
    if isinstance(expected, str):
        return NumberGrade(False, "gold_not_numeric", answer)
    found = parse_number(answer)
    if isinstance(found, str):
        return NumberGrade(False, found, answer)
    return NumberGrade(found == expected, "ok" if found == expected else "wrong", answer)


def strict_answer(completion: str) -> tuple[str | None, str]:
    """The text between the tags, stripped, and ``ok``; or None and what is wrong with the format."""
    _, closed, rest = completion.partition(CLOSE_THINK)
    if not closed:
        return None, "no_close_think"
    if completion.count(OPEN_ANSWER) > 1 or completion.count(CLOSE_ANSWER) > 1:
        return None, "multiple_answers"
    before, opened, rest = rest.partition(OPEN_ANSWER)
    answer, closed, after = rest.partition(CLOSE_ANSWER)
    if not (opened and closed):
        return None, "no_answer_tag"
    if before.strip():
        return None, "text_before_answer"
    if after.strip():
        return None, "trailing_text"
    return answer.strip(), "ok"


def _tolerant_answer(completion: str) -> tuple[str | None, str]:
    """The last answer: the last pair of tags, else the last ``####``, else the last number in free text."""
    if OPEN_ANSWER in completion:
        return completion.rpartition(OPEN_ANSWER)[2].partition(CLOSE_ANSWER)[0].strip(), "ok"
    text = completion.rpartition(CLOSE_THINK)[2]
    if GSM8K_MARK in text:
        return text.rpartition(GSM8K_MARK)[2].partition("\n")[0].strip(), "ok"
    found = last_number(text)
    return (found, "ok") if found is not None else (None, "not_numeric")
