"""GRPO as pure functions on tensors, without models, files or processes."""

from grpo_train.algorithm.advantages import combine_rewards, group_advantages, overlong_penalty
from grpo_train.algorithm.effective_sample_size import effective_sample_size
from grpo_train.algorithm.noise_scale import GradientNoiseScale
from grpo_train.algorithm.policy_loss import PolicyLoss, policy_loss
from grpo_train.algorithm.role_advantages import RoleBaselines
from grpo_train.algorithm.rollout_correction import rollout_correction

__all__ = [
    "GradientNoiseScale", "PolicyLoss", "RoleBaselines", "combine_rewards", "effective_sample_size",
    "group_advantages", "overlong_penalty", "policy_loss", "rollout_correction",
]  # fmt: skip
