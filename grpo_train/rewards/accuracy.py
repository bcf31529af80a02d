"""The verdict on a completion whose answer is a number."""

from __future__ import annotations

from grpo_train.rewards.number import grade_number
from grpo_train.rewards.types import Attempt, Verdict


def judge_number(attempt: Attempt) -> Verdict:
    """Right is the gold number in strict format; the tolerant reading stands beside it.

    A truncated completion is wrong, as in understand-r1-zero's train_zero_math.py: what it would have said is unknown.
    """
    gold = attempt.problem.answer
    strict = grade_number(attempt.completion, gold, mode="strict")
    tolerant = grade_number(attempt.completion, gold, mode="tolerant")
    cut = attempt.truncated
    return Verdict(
        correct=strict.correct and not cut,
        formatted=strict.formatted and not cut,
        reason="truncated" if cut else strict.reason,
        answer=strict.answer,
        tolerant=tolerant.correct,
        metrics={"hacking/multiple_answers": float(strict.reason == "multiple_answers")},
    )
