"""The rollout buffer: completions of one round of generation with all that its updates need.

A buffer of ``buffer_size`` prompt groups feeds ``num_iterations`` passes of ``updates_per_buffer`` updates. Update k
of a pass takes the k-th of as many equal parts, and each part is divided among the ranks: what a step learns from does
not depend on how many processes share it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_train.algorithm import RoleBaselines, combine_rewards, group_advantages, overlong_penalty
from grpo_train.config.schema import Config
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Sample
from grpo_train.train.distributed import Group
from grpo_train.train.metrics import reward_metrics, rollout_row

FILE = "buffer"
"""Name of the file of a pending buffer in a checkpoint."""


@dataclass
class RolloutBuffer:
    """This rank's share; a group's completions stand side by side, groups in the order of :func:`groups_of`.

    A place of a group that no sample took (a game that ended early) holds a completion without tokens.
    """

    completions: list[Completion]
    advantages: torch.Tensor
    """(B,) float32, a masked completion's too: ``counted`` keeps it out of the loss."""
    counted: torch.Tensor
    """(B,) bool; False = masked out of the loss (``mask_truncated_completions``), or a place that no sample took."""
    completions_per_update: list[int]
    """Completions of each update's part, over all ranks: a normaliser."""
    tokens_per_update: list[float]
    """Unmasked completion tokens of each update's part, over all ranks: a normaliser."""
    metrics: dict[str, Any]
    """What is logged of the buffer with each of its steps."""
    old_logps: list[torch.Tensor] = field(default_factory=list)
    """Per completion (T_i,): the trainer's log-probabilities before the first update; empty when strictly on-policy."""
    ref_logps: list[torch.Tensor] = field(default_factory=list)
    """Per completion (T_i,): the reference model's; empty when beta is 0."""

    def part(self, update: int, updates: int) -> range:
        """Indices of this rank's completions in the ``update``-th part."""
        size = len(self.completions) // updates
        return range(update * size, (update + 1) * size)


def groups_of(rank: int, world_size: int, buffer_size: int, updates: int) -> list[int]:
    """The prompt groups of a rank, the first update's first."""
    part, share = buffer_size // updates, buffer_size // updates // world_size
    return [update * part + rank * share + k for update in range(updates) for k in range(share)]


def make_buffer(
    step: int,
    my_groups: Sequence[int],
    samples: Sequence[Sample | None],
    config: Config,
    group: Group,
    baselines: RoleBaselines | None = None,
) -> tuple[RolloutBuffer, list[dict[str, Any]], int]:
    """Rewards and advantages over all ranks' samples.

    Args:
        step: the first step that learns from the buffer.
        my_groups: the numbers of this rank's groups in the buffer.
        samples: ``num_generations`` places of each group, side by side.
        baselines: self-play: what each role's reward is compared to; it learns from the buffer's games.

    Returns:
        This rank's share; the rows of ``rollouts.jsonl`` of all ranks; tokens of all prompts and completions.
    """
    generations, budget = config.rollout.num_generations, config.rollout.max_completion_length
    algorithm = config.algorithm
    my_rows = []
    for i, sample in enumerate(samples):
        if sample is None:
            continue
        rewards: dict[str, float | None] = dict(sample.grade.rewards)
        if algorithm.overlong_buffer:
            length = torch.tensor([len(sample.completion.ids)])
            rewards["overlong"] = float(overlong_penalty(length, budget, algorithm.overlong_buffer))
        my_rows.append(rollout_row(step, my_groups[i // generations], i % generations, sample, rewards))
    my_tokens = sum(len(s.completion.prompt_ids) + len(s.completion.ids) for s in samples if s)
    my_metrics = [sample.grade.verdict.metrics for sample in samples if sample]
    gathered = group.gather((my_rows, my_tokens, my_metrics))
    rows = sorted((row for part, _, _ in gathered for row in part), key=lambda row: (row["group"], row["sample"]))

    names = sorted({name for row in rows for name in row["rewards"]})
    by_name = {
        name: torch.tensor([_or_nan(row["rewards"].get(name)) for row in rows], dtype=torch.float64) for name in names
    }
    rewards_B = combine_rewards(by_name, algorithm.reward_weights)
    if baselines is None:
        advantages = group_advantages(rewards_B, generations, algorithm.scale_rewards)
    else:
        advantages = _role_advantages(rows, rewards_B, baselines)
    for row, reward, advantage in zip(rows, rewards_B.tolist(), advantages.tolist(), strict=True):
        row["reward"], row["advantage"] = None if math.isnan(reward) else reward, advantage

    # All ranks' rows laid out in places: the same for every rank, so that shares of it are, too.
    places = config.rollout.buffer_size * generations
    filled = {row["group"] * generations + row["sample"]: i for i, row in enumerate(rows)}
    counted, present = torch.zeros(places, dtype=torch.bool), torch.zeros(places, dtype=torch.long)
    lengths, placed = torch.zeros(places, dtype=torch.float64), torch.zeros(places, dtype=torch.float64)
    for place, i in filled.items():
        counted[place] = not (algorithm.mask_truncated_completions and rows[i]["truncated"])
        lengths[place], present[place], placed[place] = rows[i]["length"], 1, advantages[i]
    mine = [number * generations + k for number in my_groups for k in range(generations)]
    nothing = Completion((), (), (), finished=True)
    buffer = RolloutBuffer(
        completions=[sample.completion if sample else nothing for sample in samples],
        advantages=placed.float()[mine],
        counted=counted[mine],
        completions_per_update=present.view(algorithm.updates_per_buffer, -1).sum(dim=1).tolist(),
        tokens_per_update=(lengths * counted).view(algorithm.updates_per_buffer, -1).sum(dim=1).tolist(),
        metrics=reward_metrics(rows, [each for _, _, part in gathered for each in part]),
    )
    return buffer, rows, sum(tokens for _, tokens, _ in gathered)


def _role_advantages(rows: Sequence[dict[str, Any]], rewards_B: torch.Tensor, baselines: RoleBaselines) -> torch.Tensor:
    """(B,): each role's reward in its game against that role's baseline; all its turns have the same."""
    games: dict[int, tuple[str, dict[str, float]]] = {}
    for row, reward in zip(rows, rewards_B.tolist(), strict=True):
        game, _, role = row["role"].rpartition("/")
        games.setdefault(row["group"], (game, {}))[1][role] = reward
    scored = dict(zip(games, baselines.advantages(games.values()), strict=True))
    advantages = [scored[row["group"]][row["role"].rpartition("/")[2]] for row in rows]
    return torch.tensor(advantages, dtype=rewards_B.dtype)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


def to_state(buffer: RolloutBuffer, group: Group, config: Config) -> dict[str, Any]:
    """The buffer of all ranks in the order of its prompt groups, as tensors and plain values. Every rank calls it."""
    gathered = group.gather(buffer)
    generations, updates = config.rollout.num_generations, config.algorithm.updates_per_buffer
    rows: dict[int, tuple[RolloutBuffer, int]] = {}
    for rank, share in enumerate(gathered):
        for place, number in enumerate(groups_of(rank, group.world_size, config.rollout.buffer_size, updates)):
            rows[number] = (share, place * generations)
    order = [(share, first + k) for _, (share, first) in sorted(rows.items()) for k in range(generations)]
    return {
        "completions": [
            {
                "prompt_ids": list(share.completions[i].prompt_ids),
                "ids": list(share.completions[i].ids),
                "logps": torch.tensor(share.completions[i].logps, dtype=torch.float64),
                "finished": share.completions[i].finished,
            }
            for share, i in order
        ],
        "advantages": torch.stack([share.advantages[i] for share, i in order]),
        "counted": torch.stack([share.counted[i] for share, i in order]),
        "old_logps": [share.old_logps[i] for share, i in order if share.old_logps],
        "ref_logps": [share.ref_logps[i] for share, i in order if share.ref_logps],
        "completions_per_update": buffer.completions_per_update,
        "tokens_per_update": buffer.tokens_per_update,
        "metrics": buffer.metrics,
    }


def from_state(state: dict[str, Any], group: Group, config: Config) -> RolloutBuffer:
    """This rank's share of a saved buffer, whatever the number of ranks that saved it."""
    generations, updates = config.rollout.num_generations, config.algorithm.updates_per_buffer
    groups = groups_of(group.rank, group.world_size, config.rollout.buffer_size, updates)
    mine = [number * generations + k for number in groups for k in range(generations)]
    return RolloutBuffer(
        completions=[_completion(state["completions"][i]) for i in mine],
        advantages=state["advantages"][mine],
        counted=state["counted"][mine],
        completions_per_update=list(state["completions_per_update"]),
        tokens_per_update=list(state["tokens_per_update"]),
        metrics=dict(state["metrics"]),
        old_logps=_pick(state["old_logps"], mine),
        ref_logps=_pick(state["ref_logps"], mine),
    )


def _completion(row: dict[str, Any]) -> Completion:
    return Completion(tuple(row["prompt_ids"]), tuple(row["ids"]), tuple(row["logps"].tolist()), bool(row["finished"]))


def _pick(values: Sequence[torch.Tensor], indices: Sequence[int]) -> list[torch.Tensor]:
    return [values[i] for i in indices] if values else []
