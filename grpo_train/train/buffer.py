"""The rollout buffer: completions of one round of generation with everything their updates need.

A buffer of ``buffer_size`` prompt groups serves ``num_iterations`` passes of ``updates_per_buffer`` updates. Update k
of a pass takes the k-th of as many equal parts, whose micro-batches the ranks deal among themselves
(:func:`deal`): what a step learns from does not depend on the number of processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from grpo_train.config.schema import Config
from grpo_train.rollout import Completion
from grpo_train.rollout.collect import Sample
from grpo_train.run_dir.formats import current_row
from grpo_train.train.distributed import World

# dealing micro-batches to ranks ----------------------------------------------------------------------------
# By tokens, so that no rank waits for another. Micro-batches stay as they are, since the noise scale compares their
# gradients: they are moved, not mixed.


def deal(tokens: Sequence[int], ranks: int, updates: int) -> list[int]:
    """The rank of each of a buffer's micro-batches, which every rank computes alike.

    In each update, the longest micro-batch that is left goes to the rank with the fewest tokens so far, unless that
    leaves the busiest rank as busy as before: then, and where nothing is computed, micro-batches stay where they were
    generated.

    Args:
        tokens: what each micro-batch computes, 0 = nothing; those of the first update first, and of an update those
            that rank 0 generated first.
        updates: updates of one pass over the buffer.
    """
    part = len(tokens) // updates
    home = [rank for rank in range(ranks) for _ in range(part // ranks)]
    found: list[int] = []
    for update in range(updates):
        work = tokens[update * part : (update + 1) * part]
        dealt, loads = list(home), [0] * ranks
        for index in sorted(range(part), key=lambda index: (-work[index], index)):
            if work[index]:
                dealt[index] = min(range(ranks), key=lambda rank: (loads[rank], rank != home[index], rank))
                loads[dealt[index]] += work[index]
        busiest = max(sum(w for w, rank in zip(work, home, strict=True) if rank == each) for each in range(ranks))
        found += home if busiest <= max(loads) else dealt
    return found


NOTHING = Completion((), (), (), finished=True)
"""Of an unused slot."""
FILE = "buffer"
"""File name (without suffix) of a pending buffer in a checkpoint."""


@dataclass
class RolloutBuffer:
    """This rank's share: consecutive completions of each of its groups.

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
    kept: list[int] = field(default_factory=list)
    """Slots of the whole buffer (group times ``num_generations`` plus sample) whose tokens are logged."""
    groups: list[int] | None = None
    """Indices of the share's groups in the whole buffer, in order; None = the buffer is whole."""

    def microbatches(self, update: int, config: Config) -> list[range]:
        """Indices of this rank's completions in each of its micro-batches of part ``update``."""
        size = config.microbatch_size * config.rollout.num_generations
        part = config.rollout.buffer_size // config.algorithm.updates_per_buffer
        firsts = range(0, len(self.completions), size)
        updates = [self._group(row // config.rollout.num_generations) // part for row in firsts]
        return [range(row, row + size) for row, each in zip(firsts, updates, strict=True) if each == update]

    def kept_rows(self, update: int, config: Config) -> dict[int, tuple[int, int]]:
        """This rank's completions of part ``update`` whose tokens are logged: group and sample, by their indices."""
        generations = config.rollout.num_generations
        rows = (row for microbatch in self.microbatches(update, config) for row in microbatch)
        places = {row: (self._group(row // generations), row % generations) for row in rows}
        kept = set(self.kept)
        return {row: place for row, place in places.items() if place[0] * generations + place[1] in kept}

    def pick(self, rows: Sequence[int], groups: list[int]) -> RolloutBuffer:
        """The share that consists of some completions, those of ``groups``."""
        return replace(
            self,
            completions=[self.completions[row] for row in rows],
            advantages=self.advantages[list(rows)],
            counted=self.counted[list(rows)],
            old_logps=[self.old_logps[row] for row in rows] if self.old_logps else [],
            ref_logps=[self.ref_logps[row] for row in rows] if self.ref_logps else [],
            groups=groups,
        )

    def _group(self, number: int) -> int:
        return number if self.groups is None else self.groups[number]


def groups_of(world: World, config: Config) -> list[int]:
    """Indices of the prompt groups that a rank generates, those of the first update first."""
    updates = config.algorithm.updates_per_buffer
    part = config.rollout.buffer_size // updates
    share = part // world.size
    return [update * part + world.rank * share + k for update in range(updates) for k in range(share)]


def make_buffer(
    mine: Sequence[Sample],
    my_groups: Sequence[int],
    samples: Sequence[Sample],
    advantages: torch.Tensor,
    config: Config,
) -> RolloutBuffer:
    """A new buffer's completions that this rank generated.

    Args:
        mine: this rank's samples, with their tokens, of ``my_groups``.
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
    own = {(sample.group, sample.slot): sample.completion for sample in mine}
    places = [(group, slot) for group in my_groups for slot in range(generations)]
    slots_here = [group * generations + slot for group, slot in places]
    return RolloutBuffer(
        completions=[own.get(place) or NOTHING for place in places],
        advantages=all_advantages[slots_here],
        counted=counted[slots_here],
        completions_per_update=present.view(updates, -1).sum(dim=1).tolist(),
        tokens_per_update=(lengths * counted).view(updates, -1).sum(dim=1).tolist(),
        groups=list(my_groups),
    )


def deal_buffer(buffer: RolloutBuffer, world: World, config: Config) -> RolloutBuffer:
    """This rank's share of a new buffer: micro-batches dealt among the ranks by the tokens that they compute.

    Every rank calls it, before old and reference log-probabilities are scored.
    """
    if world.size == 1:
        return buffer
    parts = _split(buffer, config)
    tokens = {
        index: count
        for part in world.gather({index: _tokens(part, config) for index, part in parts.items()})
        for index, count in part.items()
    }
    ranks = _ranks(tokens, world, config)
    for moved in world.gather({index: part for index, part in parts.items() if ranks[index] != world.rank}):
        parts |= moved
    return _join({index: part for index, part in parts.items() if ranks[index] == world.rank}, buffer)


def taking_part(buffer: RolloutBuffer, config: Config) -> np.ndarray:
    """(B,) bool: False for a completion whose gradient is exactly zero: it is counted but not computed."""
    has_tokens = np.array([len(completion.ids) > 0 for completion in buffer.completions], dtype=bool)
    if not config.train.skip_zero_advantages:
        return has_tokens
    moves = buffer.advantages.numpy() != 0
    if config.algorithm.beta > 0 or config.algorithm.entropy_coef > 0:
        moves = np.ones_like(moves)
    takes_part: np.ndarray = has_tokens & buffer.counted.numpy() & moves
    return takes_part


def to_state(buffer: RolloutBuffer, world: World, config: Config) -> dict[str, Any]:
    """The buffer of all ranks in the order of its groups, as tensors and plain values. Every rank calls it."""
    whole = _join(
        {index: part for share in world.gather(_split(buffer, config)) for index, part in share.items()}, buffer
    )
    return {
        "completions": [
            {
                "prompt_ids": list(completion.prompt_ids),
                "ids": list(completion.ids),
                "logps": torch.tensor(completion.logps, dtype=torch.float64),
                "finished": completion.finished,
            }
            for completion in whole.completions
        ],
        "advantages": whole.advantages,
        "counted": whole.counted,
        "old_logps": whole.old_logps,
        "ref_logps": whole.ref_logps,
        "completions_per_update": buffer.completions_per_update,
        "tokens_per_update": buffer.tokens_per_update,
        "metrics": buffer.metrics,
        "kept": buffer.kept,
    }


def from_state(state: dict[str, Any], world: World, config: Config) -> RolloutBuffer:
    """This rank's share of a saved buffer, whatever the number of ranks that saved it."""
    whole = RolloutBuffer(
        completions=[_completion(row) for row in state["completions"]],
        advantages=state["advantages"],
        counted=state["counted"],
        completions_per_update=list(state["completions_per_update"]),
        tokens_per_update=list(state["tokens_per_update"]),
        metrics=current_row(state["metrics"]),
        old_logps=list(state["old_logps"]),
        ref_logps=list(state["ref_logps"]),
        kept=list(state.get("kept", ())),  # earlier versions kept none
    )
    parts = _split(whole, config)
    ranks = _ranks({index: _tokens(part, config) for index, part in parts.items()}, world, config)
    return _join({index: part for index, part in parts.items() if ranks[index] == world.rank}, whole)


def _split(buffer: RolloutBuffer, config: Config) -> dict[int, RolloutBuffer]:
    """A share's micro-batches, by their index in the whole buffer."""
    prompts, generations = config.microbatch_size, config.rollout.num_generations
    count = len(buffer.completions) // generations
    groups = list(range(count)) if buffer.groups is None else buffer.groups
    return {
        groups[k] // prompts: buffer.pick(range(k * generations, (k + prompts) * generations), groups[k : k + prompts])
        for k in range(0, count, prompts)
    }


def _join(parts: dict[int, RolloutBuffer], like: RolloutBuffer) -> RolloutBuffer:
    """The share that consists of some micro-batches, in their order; maybe of none."""
    ordered = [parts[index] for index in sorted(parts)]

    def joined(name: str) -> list[Any]:
        return [value for part in ordered for value in getattr(part, name)]

    return replace(
        like,
        completions=joined("completions"),
        advantages=torch.cat([like.advantages[:0], *(part.advantages for part in ordered)]),
        counted=torch.cat([like.counted[:0], *(part.counted for part in ordered)]),
        old_logps=joined("old_logps"),
        ref_logps=joined("ref_logps"),
        groups=joined("groups"),
    )


def _ranks(tokens: dict[int, int], world: World, config: Config) -> list[int]:
    return deal([tokens[index] for index in sorted(tokens)], world.size, config.algorithm.updates_per_buffer)


def _tokens(part: RolloutBuffer, config: Config) -> int:
    """Tokens that a micro-batch computes; a prompt that completions share counts once."""
    computed = [part.completions[row] for row in np.flatnonzero(taking_part(part, config))]
    prompts = {completion.prompt_ids for completion in computed}
    return sum(map(len, prompts)) + sum(len(completion.ids) for completion in computed)


def _completion(row: dict[str, Any]) -> Completion:
    return Completion(tuple(row["prompt_ids"]), tuple(row["ids"]), tuple(row["logps"].tolist()), bool(row["finished"]))
