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

from grpo_train.algorithm import combine_rewards, group_advantages, overlong_penalty
from grpo_train.distributed import Group
from grpo_train.metrics import reward_metrics, rollout_row
from grpo_train.rewards import Grade
from grpo_train.rollout import Completion
from grpo_train.rollout.prompts import Prompt
from grpo_train.schema import Config
from grpo_train.tasks import TaskError

FILE = "buffer"
"""Name of the file of a pending buffer in a checkpoint."""


@dataclass
class RolloutBuffer:
    """This rank's share; a group's completions stand side by side, groups in the order of :func:`groups_of`."""

    completions: list[Completion]
    advantages: torch.Tensor
    """(B,) float32, a masked completion's too: ``counted`` keeps it out of the loss."""
    counted: torch.Tensor
    """(B,) bool; False = masked out of the loss (``mask_truncated_completions``)."""
    tokens_per_update: list[float]
    """Unmasked completion tokens of each update's part, over all ranks: a normaliser."""
    metrics: dict[str, float]
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
    prompts: Sequence[Prompt],
    completions: Sequence[Completion],
    texts: Sequence[str],
    grades: Sequence[Grade],
    config: Config,
    group: Group,
) -> tuple[RolloutBuffer, list[dict[str, Any]], int]:
    """Rewards and advantages over all ranks' completions.

    Args:
        step: the first step that learns from the buffer.
        my_groups, prompts: this rank's prompt groups: their numbers in the buffer, and what was asked.
        completions, texts, grades: ``num_generations`` of each prompt, side by side.

    Returns:
        This rank's share; the rows of ``rollouts.jsonl`` of all ranks; tokens of all prompts and completions.
    """
    generations, budget = config.rollout.num_generations, config.rollout.max_completion_length
    algorithm = config.algorithm
    my_rows = []
    for i, (completion, text, grade) in enumerate(zip(completions, texts, grades, strict=True)):
        rewards: dict[str, float | None] = dict(grade.rewards)
        if algorithm.overlong_buffer:
            length = torch.tensor([len(completion.ids)])
            rewards["overlong"] = float(overlong_penalty(length, budget, algorithm.overlong_buffer))
        number, sample = my_groups[i // generations], i % generations
        my_rows.append(rollout_row(step, number, sample, prompts[i // generations], completion, text, grade, rewards))
    my_tokens = sum(len(c.prompt_ids) + len(c.ids) for c in completions)
    gathered = group.gather((my_rows, my_tokens))
    rows = sorted((row for part, _ in gathered for row in part), key=lambda row: (row["group"], row["sample"]))

    names = sorted({name for row in rows for name in row["rewards"]})
    if unknown := sorted(set(algorithm.reward_weights) - set(names)):
        raise TaskError(
            f"algorithm.reward_weights: no reward function is called {', '.join(unknown)}; there are {', '.join(names)}"
        )
    by_name = {
        name: torch.tensor([_or_nan(row["rewards"].get(name)) for row in rows], dtype=torch.float64) for name in names
    }
    rewards_B = combine_rewards(by_name, algorithm.reward_weights)
    advantages = group_advantages(rewards_B, generations, algorithm.scale_rewards)
    for row, reward, advantage in zip(rows, rewards_B.tolist(), advantages.tolist(), strict=True):
        row["reward"], row["advantage"] = None if math.isnan(reward) else reward, advantage

    counted = torch.tensor([not (algorithm.mask_truncated_completions and row["truncated"]) for row in rows])
    lengths = torch.tensor([row["length"] for row in rows], dtype=torch.float64)
    mine = [number * generations + k for number in my_groups for k in range(generations)]
    buffer = RolloutBuffer(
        completions=list(completions),
        advantages=advantages.float()[mine],
        counted=counted[mine],
        tokens_per_update=(lengths * counted).view(algorithm.updates_per_buffer, -1).sum(dim=1).tolist(),
        metrics=reward_metrics(rows, generations),
    )
    return buffer, rows, sum(tokens for _, tokens in gathered)


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
        tokens_per_update=list(state["tokens_per_update"]),
        metrics=dict(state["metrics"]),
        old_logps=_pick(state["old_logps"], mine),
        ref_logps=_pick(state["ref_logps"], mine),
    )


def _completion(row: dict[str, Any]) -> Completion:
    return Completion(tuple(row["prompt_ids"]), tuple(row["ids"]), tuple(row["logps"].tolist()), bool(row["finished"]))


def _pick(values: Sequence[torch.Tensor], indices: Sequence[int]) -> list[torch.Tensor]:
    return [values[i] for i in indices] if values else []
