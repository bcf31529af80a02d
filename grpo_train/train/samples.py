"""Rewards and advantages of a buffer, from the samples of all ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from grpo_train.algorithm import RoleBaselines, combine_rewards, group_advantages, overlong_penalty
from grpo_train.config.schema import Algorithm, Config
from grpo_train.rewards.types import Problem, Verdict
from grpo_train.rollout.collect import Role, Sample
from grpo_train.train.distributed import World


@dataclass(frozen=True)
class ScoredSample:
    """A sample as ranks exchange it: without tokens, with the reward of each function."""

    group: int
    """Index of its prompt (or game) in the buffer."""
    slot: int
    """Index in its group (in a game: the turn)."""
    problem: Problem
    """Without ``data``."""
    text: str
    prompt_length: int
    length: int
    """Tokens of the completion."""
    truncated: bool
    verdict: Verdict
    rewards: Mapping[str, float | None]
    """By function; None where a function does not apply."""
    role: Role | None = None
    """Set in self-play."""


@dataclass(frozen=True)
class Discarded:
    """A sample that no step learns from."""

    sample: ScoredSample
    """Its group is numbered after those of the buffer."""
    reason: str
    """``no_spread``: all rewards of its group are equal; ``surplus``: the buffer was full before its prompt, which the
    next buffer draws again."""


def gather_samples(
    rollouts: Sequence[Sample | None], my_groups: Sequence[int], config: Config, world: World
) -> list[ScoredSample]:
    """Samples of all ranks, by group and slot. Every rank calls it.

    ``rollouts`` are this rank's, ``num_generations`` consecutive slots for each of ``my_groups``.
    """
    generations = config.rollout.num_generations
    mine = [
        _score(sample, my_groups[i // generations], i % generations, config)
        for i, sample in enumerate(rollouts)
        if sample is not None
    ]
    samples = [sample for part in world.gather(mine) for sample in part]
    return sorted(samples, key=lambda sample: (sample.group, sample.slot))


def total_rewards(samples: Sequence[ScoredSample], algorithm: Algorithm) -> torch.Tensor:
    """Weighted sum of each sample's rewards: (B,) float64, NaN where no function applies."""
    names = sorted({name for sample in samples for name in sample.rewards})
    rewards = {
        name: torch.tensor([_or_nan(sample.rewards.get(name)) for sample in samples], dtype=torch.float64)
        for name in names
    }
    return combine_rewards(rewards, algorithm.reward_weights)


def compute_advantages(
    samples: Sequence[ScoredSample], rewards: torch.Tensor, config: Config, baselines: RoleBaselines | None = None
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


def _score(sample: Sample, group: int, slot: int, config: Config) -> ScoredSample:
    length = len(sample.completion.ids)
    rewards: dict[str, float | None] = dict(sample.grade.rewards)
    if config.algorithm.overlong_buffer:
        budget, buffer = config.rollout.max_completion_length, config.algorithm.overlong_buffer
        rewards["overlong"] = float(overlong_penalty(torch.tensor([length]), budget, buffer))
    return ScoredSample(
        group=group,
        slot=slot,
        problem=replace(sample.prompt.problem, data=None),
        text=sample.text,
        prompt_length=len(sample.completion.prompt_ids),
        length=length,
        truncated=not sample.completion.finished,
        verdict=sample.grade.verdict,
        rewards=rewards,
        role=sample.role,
    )


def _role_of(sample: ScoredSample) -> Role:
    assert sample.role is not None, "self-play samples have a role"
    return sample.role


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
