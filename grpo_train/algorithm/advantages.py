"""Group-relative advantages."""

from __future__ import annotations

import torch


def group_advantages(rewards: torch.Tensor, num_generations: int) -> torch.Tensor:
    """Each reward minus the mean of its prompt group.

    Dr. GRPO (Liu et al. 2025, arXiv 2503.20783, §3.2) leaves GRPO's division by the group's standard deviation out:
    that division weighs questions by how hard they are.

    Args:
        rewards: (B,), groups of ``num_generations`` neighbours.
        num_generations: completions per prompt.

    Returns:
        (B,) in the dtype of ``rewards``; each group sums to 0.

    Raises:
        ValueError: B is no multiple of ``num_generations``.
    """
    if rewards.numel() % num_generations:
        raise ValueError(f"{rewards.numel()} rewards are no whole number of groups of {num_generations}")
    groups = rewards.view(-1, num_generations)
    return (groups - groups.mean(dim=1, keepdim=True)).view(-1)
