"""The accuracy reward: all or nothing for a right number in the right format."""

from __future__ import annotations

from grpo_train.rewards.grade import Grade
from grpo_train.rewards.number import grade_number


def grade_accuracy(completion: str, gold: str, truncated: bool, correct_reward: float) -> Grade:
    """Grade a completion whose answer is a number: ``correct_reward`` for a right one in strict format, else 0.

    A truncated completion earns 0, as in understand-r1-zero's train_zero_math.py: what it would have said is unknown.
    """
    verdict = grade_number(completion, gold, mode="strict")
    correct = verdict.correct and not truncated
    return Grade(
        rewards={"accuracy": correct_reward if correct else 0.0},
        correct=correct,
        formatted=verdict.formatted and not truncated,
        reason="truncated" if truncated else verdict.reason,
        answer=verdict.answer,
    )
