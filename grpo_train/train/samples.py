"""Rewards and advantages of a buffer, from the samples of all ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from grpo_train.algorithm import RoleBaselines, combine_rewards, group_advantages
from grpo_train.config.schema import Algorithm, Config
from grpo_train.rollout.collect import Role, Sample
from grpo_train.train.distributed import World


@dataclass(frozen=True)
class Discarded:
    """A sample that no step learns from."""

    sample: Sample
    """Its group is numbered after those of the buffer."""
    reason: str
    """``no_spread``: all rewards of its group are equal; ``surplus``: the buffer was full before its prompt, which the
    next buffer draws again."""


def gather_samples(mine: Sequence[Sample], world: World) -> list[Sample]:
    """Samples of all ranks by group and slot, without their tokens. Every rank calls it with its own."""
    samples = [sample for part in world.gather([_bare(sample) for sample in mine]) for sample in part]
    return sorted(samples, key=lambda sample: (sample.group, sample.slot))


def total_rewards(samples: Sequence[Sample], algorithm: Algorithm) -> torch.Tensor:
    """Weighted sum of each sample's rewards: (B,) float64, NaN where no function applies."""
    names = sorted({name for sample in samples for name in sample.rewards})
    rewards = {
        name: torch.tensor([_or_nan(sample.rewards.get(name)) for sample in samples], dtype=torch.float64)
        for name in names
    }
    return combine_rewards(rewards, algorithm.reward_weights)


def compute_advantages(
    samples: Sequence[Sample], rewards: torch.Tensor, config: Config, baselines: RoleBaselines | None = None
) -> torch.Tensor:
    """Advantage of each sample, (B,) float64.

    It compares the reward to the group's rewards, or in self-play to the role's baseline; all turns of a role in a game
    have the same advantage. ``baselines`` are updated by the games.
    """
    if baselines is None:
        return group_advantages(rewards, config.rollout.num_generations, config.algorithm.scale_rewards)
    games: dict[int, tuple[str, dict[str, float]]] = {}
    for sample, reward in zip(samples, rewards.tolist(), strict=True):
        role = _role_of(sample)
        games.setdefault(sample.group, (role.game, {}))[1][role.name] = reward
    by_group = dict(zip(games, baselines.advantages(games.values()), strict=True))
    advantages = [by_group[sample.group][_role_of(sample).name] for sample in samples]
    return torch.tensor(advantages, dtype=rewards.dtype)


def _bare(sample: Sample) -> Sample:
    """A sample for all ranks."""
    return replace(sample, problem=replace(sample.problem, data=None), completion=None)


def _role_of(sample: Sample) -> Role:
    assert sample.role is not None, "self-play samples have a role"
    return sample.role


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
