"""Advantages and losses: pure functions on tensors, so that anyone can check them."""

from grpo_train.algorithm.advantages import group_advantages
from grpo_train.algorithm.policy_loss import PolicyLoss, policy_loss

__all__ = ["PolicyLoss", "group_advantages", "policy_loss"]
