"""Rewards: graders and what their verdicts are worth. Torch-free."""

from grpo_train.rewards.accuracy import grade_accuracy
from grpo_train.rewards.grade import Grade
from grpo_train.rewards.number import NumberGrade, grade_number

__all__ = ["Grade", "NumberGrade", "grade_accuracy", "grade_number"]
