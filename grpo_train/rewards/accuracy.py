"""Verdict on a completion whose answer is a number."""

from __future__ import annotations

from grpo_train.rewards.number import grade_number
from grpo_train.rewards.types import Attempt, Verdict


def judge_number(attempt: Attempt) -> Verdict:
    """Compare the answer with the gold number, in the strict and in the flexible reading.

    A truncated completion is wrong, as in understand-r1-zero's train_zero_math.py: its final answer is unknown.
    """
    gold = attempt.problem.answer
    strict = grade_number(attempt.completion, gold, mode="strict")
    flexible = grade_number(attempt.completion, gold, mode="flexible")
    return Verdict(
        correct=strict.correct and not attempt.truncated,
        formatted=strict.formatted and not attempt.truncated,
        reason="truncated" if attempt.truncated else strict.reason,
        answer=strict.answer,
        flexible=flexible.correct,
        metrics={"hacking/multiple_answers": float(strict.reason == "multiple_answers")},
    )
