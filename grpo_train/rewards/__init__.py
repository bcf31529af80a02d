"""Rewards: graders, the sandbox for programs, and what verdicts are worth. Torch-free."""

from grpo_train.rewards.accuracy import judge_number
from grpo_train.rewards.functions import Grade, RewardFunction, Rewards, load_rewards
from grpo_train.rewards.number import NumberGrade, grade_number
from grpo_train.sandbox import run_program, run_tests

__all__ = [
    "Grade", "NumberGrade", "RewardFunction", "Rewards", "grade_number", "judge_number", "load_rewards", "run_program",
    "run_tests",
]  # fmt: skip
