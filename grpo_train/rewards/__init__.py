"""Graders and reward functions. Torch-free."""

from grpo_train.rewards.functions import Grade, Rewards, load_rewards

__all__ = ["Grade", "Rewards", "load_rewards"]
