"""The rollout buffer: completions of one round of generation with everything their updates need.

A buffer of ``buffer_size`` prompt groups serves ``num_iterations`` passes of ``updates_per_buffer`` updates. Update k
of a pass takes the k-th of as many equal parts, and each part is divided among the ranks: what a step learns from does
not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from grpo_train.config.schema import Config
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Sample
from grpo_train.run_dir.formats import current_row
from grpo_train.train.distributed import World
from grpo_train.train.samples import ScoredSample

FILE = "buffer"
"""File name (without suffix) of a pending buffer in a checkpoint."""


@dataclass
class RolloutBuffer:
    """This rank's share: consecutive completions of each group, groups in the order of :func:`groups_of`.

    An unused slot of a group (a game that ended early) holds a completion without tokens.
    """

    completions: list[Completion]
    advantages: torch.Tensor
    """(B,) float32, also for masked completions: ``counted`` keeps them out of the loss."""
    counted: torch.Tensor
    """(B,) bool; False = not in the loss: masked (``mask_truncated_completions``) or an unused slot."""
    completions_per_update: list[int]
    """Completions of each update's part, over all ranks: a normalizer."""
    tokens_per_update: list[float]
    """Unmasked completion tokens of each update's part, over all ranks: a normalizer."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """Rollout metrics, logged with each of the buffer's steps."""
    old_logps: list[torch.Tensor] = field(default_factory=list)
    """(T_i,) per completion: the trainer's log-probabilities before the first update; empty if strictly on-policy."""
    ref_logps: list[torch.Tensor] = field(default_factory=list)
    """(T_i,) per completion: the reference model's log-probabilities; empty if beta is 0."""

    def part(self, update: int, updates: int) -> range:
        """Indices of this rank's completions in part ``update``."""
        size = len(self.completions) // updates
        return range(update * size, (update + 1) * size)


def groups_of(world: World, config: Config) -> list[int]:
    """Indices of a rank's prompt groups, those of the first update first."""
    updates = config.algorithm.updates_per_buffer
    part = config.rollout.buffer_size // updates
    share = part // world.size
    return [update * part + world.rank * share + k for update in range(updates) for k in range(share)]


def make_buffer(
    rollouts: Sequence[Sample | None],
    my_groups: Sequence[int],
    samples: Sequence[ScoredSample],
    advantages: torch.Tensor,
    config: Config,
) -> RolloutBuffer:
    """This rank's share of a new buffer.

    Args:
        rollouts: this rank's, ``num_generations`` consecutive slots for each of ``my_groups``.
        samples: those of all ranks.
        advantages: (B,), one per sample.
    """
    generations, updates = config.rollout.num_generations, config.algorithm.updates_per_buffer
    slots = config.rollout.buffer_size * generations
    filled = torch.tensor([sample.group * generations + sample.slot for sample in samples], dtype=torch.long)
    truncated = torch.tensor([sample.truncated for sample in samples], dtype=torch.bool)
    present = torch.zeros(slots, dtype=torch.long)
    present[filled] = 1
    lengths = torch.zeros(slots, dtype=torch.float64)
    lengths[filled] = torch.tensor([sample.length for sample in samples], dtype=torch.float64)
    counted = torch.zeros(slots, dtype=torch.bool)
    counted[filled] = ~truncated if config.algorithm.mask_truncated_completions else True
    all_advantages = torch.zeros(slots)
    all_advantages[filled] = advantages.float()
    mine = _slots_of(my_groups, generations)
    nothing = Completion((), (), (), finished=True)
    return RolloutBuffer(
        completions=[sample.completion if sample else nothing for sample in rollouts],
        advantages=all_advantages[mine],
        counted=counted[mine],
        completions_per_update=present.view(updates, -1).sum(dim=1).tolist(),
        tokens_per_update=(lengths * counted).view(updates, -1).sum(dim=1).tolist(),
    )


def to_state(buffer: RolloutBuffer, world: World, config: Config) -> dict[str, Any]:
    """The buffer of all ranks in the order of its groups, as tensors and plain values. Every rank calls it."""
    shares = world.gather(buffer)
    generations = config.rollout.num_generations
    slots: dict[int, tuple[RolloutBuffer, int]] = {}
    for rank, share in enumerate(shares):
        for i, slot in enumerate(_slots_of(groups_of(World(rank, rank, world.size), config), generations)):
            slots[slot] = (share, i)
    order = [slots[slot] for slot in sorted(slots)]
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


def from_state(state: dict[str, Any], world: World, config: Config) -> RolloutBuffer:
    """This rank's share of a saved buffer, whatever the number of ranks that saved it."""
    mine = _slots_of(groups_of(world, config), config.rollout.num_generations)
    return RolloutBuffer(
        completions=[_completion(state["completions"][i]) for i in mine],
        advantages=state["advantages"][mine],
        counted=state["counted"][mine],
        completions_per_update=list(state["completions_per_update"]),
        tokens_per_update=list(state["tokens_per_update"]),
        metrics=current_row(state["metrics"]),
        old_logps=_pick(state["old_logps"], mine),
        ref_logps=_pick(state["ref_logps"], mine),
    )


def _slots_of(groups: Sequence[int], generations: int) -> list[int]:
    """Indices of the groups' slots in the whole buffer."""
    return [group * generations + k for group in groups for k in range(generations)]


def _completion(row: dict[str, Any]) -> Completion:
    return Completion(tuple(row["prompt_ids"]), tuple(row["ids"]), tuple(row["logps"].tolist()), bool(row["finished"]))


def _pick(values: Sequence[torch.Tensor], indices: Sequence[int]) -> list[torch.Tensor]:
    return [values[i] for i in indices] if values else []
