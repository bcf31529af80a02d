"""Graders and reward functions. Torch-free."""

from grpo_train.rewards.functions import Rewards, RewardValues, load_rewards

__all__ = ["RewardValues", "Rewards", "load_rewards"]
