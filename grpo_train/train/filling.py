"""The groups of a rollout buffer. With ``rollout.filter_groups``, prompts are drawn until each group has a spread.

Dynamic sampling (Yu et al. 2025, DAPO, arXiv 2503.14476, section 3.2): a group whose rewards are all equal has no
gradient, so further prompts replace it. Every decision is a function of the rewards of all ranks in the order of the
prompts; it does not depend on the number of processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from grpo_train.config.schema import Config
from grpo_train.rollout.collect import Sample
from grpo_train.train.distributed import World
from grpo_train.train.samples import Discarded, ScoredSample, gather_samples, total_rewards
from grpo_train.train.state import TrainingState


@dataclass(frozen=True)
class Filled:
    """The samples of a buffer."""

    rollouts: list[Sample | None]
    """This rank's, ``num_generations`` consecutive slots for each of its groups."""
    samples: list[ScoredSample]
    """Those of all ranks, by group and slot."""
    discarded: list[Discarded] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """What was drawn and discarded, for the log; {} without a filter."""
    discarded_seconds: float = 0.0
    """This rank's generation time of discarded samples, in proportion to their tokens."""
    sync_seconds: float = 0.0
    """Until the backend had the policy's weights."""


@dataclass(frozen=True)
class BufferChoice:
    """Which candidates make up a buffer; all in the order of their prompts."""

    chosen: list[int]
    """``buffer_size`` candidates."""
    used: int
    """Candidates that the data order moves on by; the next buffer draws the remaining ones again."""
    unfilled: int
    """Chosen candidates without spread."""


def fill_buffer(
    state: TrainingState, buffer_index: int, my_groups: Sequence[int], config: Config, world: World
) -> Filled:
    """Generate and judge the groups of a buffer with the policy's weights. Every rank calls it."""
    started = time.perf_counter()
    state.backend.sync()
    sync_seconds = time.perf_counter() - started
    if config.rollout.filter_groups:
        filled = _fill_filtered(state, buffer_index, my_groups, config, world)
        return replace(filled, sync_seconds=sync_seconds)
    prompts = state.source.draw(state.num_prompts, config.rollout.buffer_size)
    state.num_prompts += len(prompts)
    with state.policy.autocast():  # tasks and reward functions grade completions while others are generated
        rollouts = state.collector.collect(buffer_index, my_groups, [prompts[k] for k in my_groups])
    return Filled(rollouts, gather_samples(rollouts, my_groups, config, world), sync_seconds=sync_seconds)


def round_size(size: int, found: int, drawn: int) -> int:
    """Prompts of the next round, for a buffer of ``size`` with ``found`` groups with spread among ``drawn``.

    As many as are expected to fill the buffer at the rate so far, at most ``size``.
    """
    return min(size, math.ceil((size - found) * drawn / found)) if found else size


def choose_candidates(has_spread: Sequence[bool], size: int) -> BufferChoice:
    """The first ``size`` candidates with spread; where there are fewer, the first ones without spread fill the rest."""
    found = [k for k, spread in enumerate(has_spread) if spread][:size]
    if len(found) == size:
        return BufferChoice(found, found[-1] + 1, 0)
    missing = size - len(found)
    flat = [k for k, spread in enumerate(has_spread) if not spread][:missing]
    return BufferChoice(sorted(found + flat), len(has_spread), missing)


def _fill_filtered(
    state: TrainingState, buffer_index: int, my_groups: Sequence[int], config: Config, world: World
) -> Filled:
    size, generations = config.rollout.buffer_size, config.rollout.num_generations
    first = state.num_prompts
    groups: list[list[Sample | None]] = []
    scored: list[list[ScoredSample]] = []
    has_spread: list[bool] = []
    seconds: list[float] = []
    rounds = 0
    while sum(has_spread) < size and rounds < config.rollout.max_rounds:
        drawn = len(groups)
        count = round_size(size, sum(has_spread), drawn)
        started = time.perf_counter()
        groups += _collect(state, buffer_index, range(drawn, drawn + count), first, generations, world)
        for k in range(drawn, drawn + count):
            samples = gather_samples(groups[k], [k], config, World())  # every rank has all of them
            scored.append(samples)
            has_spread.append(_has_spread(total_rewards(samples, config.algorithm).tolist()))
        elapsed = time.perf_counter() - started
        tokens = [_tokens(samples) for samples in scored[drawn:]]
        seconds += [elapsed * each / max(1, sum(tokens)) for each in tokens]
        rounds += 1
    choice = choose_candidates(has_spread, size)
    state.num_prompts += choice.used
    left = [k for k in range(len(groups)) if k not in set(choice.chosen)]
    discarded = [
        Discarded(replace(sample, group=size + number), "surplus" if k >= choice.used else "no_spread")
        for number, k in enumerate(left)
        for sample in scored[k]
    ]
    everything = [sample for samples in scored for sample in samples]
    return Filled(
        [sample for group in my_groups for sample in groups[choice.chosen[group]]],
        [replace(sample, group=group) for group, k in enumerate(choice.chosen) for sample in scored[k]],
        discarded,
        {
            "filter/rounds": rounds,
            "filter/groups": len(groups),
            "filter/discarded_groups": len(left),
            "filter/discarded_tokens": sum(one.sample.length for one in discarded),
            "filter/unfilled": choice.unfilled,
            "filter/accuracy": sum(sample.verdict.correct for sample in everything) / len(everything),
        },
        sum(seconds[k] for k in left),
    )


def _collect(
    state: TrainingState, buffer_index: int, candidates: range, first: int, generations: int, world: World
) -> list[list[Sample | None]]:
    """The groups of some candidates, generated by all ranks, on every rank.

    A candidate's number takes the place of its group in the seeds of its completions.
    """
    mine = candidates[world.rank :: world.size]
    prompts = [state.source.draw(first + k, 1)[0] for k in mine]
    found: list[Any] = []
    if mine:  # a small round has none for some ranks
        with state.policy.autocast():
            found = [_portable(sample) for sample in state.collector.collect(buffer_index, mine, prompts)]
    parts = world.gather([found[i * generations : (i + 1) * generations] for i in range(len(mine))])
    return [parts[i % world.size][i // world.size] for i in range(len(candidates))]


def _portable(sample: Sample | None) -> Sample | None:
    """A sample without the task's data, which other ranks do not need and may not be able to read."""
    if sample is None:
        return None
    return replace(sample, prompt=replace(sample.prompt, problem=replace(sample.prompt.problem, data=None)))


def _has_spread(rewards: Sequence[float]) -> bool:
    known = [reward for reward in rewards if not math.isnan(reward)]
    return min(known, default=0.0) < max(known, default=0.0)


def _tokens(samples: Sequence[ScoredSample]) -> int:
    return sum(sample.length for sample in samples)
