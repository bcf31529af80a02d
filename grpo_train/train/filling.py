"""``rollout.filter_groups``: prompts are drawn until each group of a buffer has a spread.

Dynamic sampling (Yu et al. 2025, DAPO, arXiv 2503.14476, section 3.2): a group whose rewards are all equal has no
gradient, so further prompts replace it. Every decision is a function of the rewards of all ranks in the order of the
prompts; it does not depend on the number of processes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from grpo_train.config.schema import Config
from grpo_train.rollout.collect import Sample
from grpo_train.train.distributed import World
from grpo_train.train.samples import Discarded, gather_samples, total_rewards
from grpo_train.train.state import TrainingState


@dataclass(frozen=True)
class BufferSamples:
    """The samples of a buffer, and those that were drawn for it."""

    mine: list[Sample]
    """This rank's, with their tokens."""
    samples: list[Sample]
    """Those of all ranks, by group and slot."""
    discarded: list[Discarded] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """What was drawn and discarded, for the log; {} without a filter."""
    discarded_seconds: float = 0.0
    """This rank's generation time of discarded samples, in proportion to their tokens."""


@dataclass(frozen=True)
class BufferChoice:
    """Which candidates make up a buffer; all in the order of their prompts."""

    chosen: list[int]
    """``buffer_size`` candidates."""
    used: int
    """Candidates that the data order moves on by; the next buffer draws the remaining ones again."""
    unfilled: int
    """Chosen candidates without spread."""


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


def draw_filtered(
    state: TrainingState, buffer_index: int, my_groups: Sequence[int], config: Config, world: World
) -> BufferSamples:
    """Generate and judge groups until those of a buffer have a spread. Every rank calls it."""
    size = config.rollout.buffer_size
    first = state.num_prompts
    groups: list[list[Sample]] = []
    scored: list[list[Sample]] = []
    has_spread: list[bool] = []
    seconds: list[float] = []
    rounds = 0
    while sum(has_spread) < size and rounds < config.rollout.max_rounds:
        drawn = len(groups)
        count = round_size(size, sum(has_spread), drawn)
        started = time.perf_counter()
        groups += _collect(state, buffer_index, range(drawn, drawn + count), first, world)
        for k in range(drawn, drawn + count):
            samples = gather_samples(groups[k], World())  # every rank has all of them
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
    return BufferSamples(
        [replace(sample, group=group) for group in my_groups for sample in groups[choice.chosen[group]]],
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
    state: TrainingState, buffer_index: int, candidates: range, first: int, world: World
) -> list[list[Sample]]:
    """The groups of some candidates, generated by all ranks, on every rank.

    A candidate's number takes the place of its group in the seeds of its completions.
    """
    mine = candidates[world.rank :: world.size]
    prompts = [state.source.draw(first + k, 1)[0] for k in mine]
    # A small round has none for some ranks. Other ranks may not be able to read the task's data.
    found = state.generate_and_judge(buffer_index, mine, prompts) if mine else []
    portable = [replace(sample, problem=replace(sample.problem, data=None)) for sample in found]
    groups: dict[int, list[Sample]] = {k: [] for k in candidates}
    for sample in (sample for part in world.gather(portable) for sample in part):
        groups[sample.group].append(sample)
    return list(groups.values())


def _has_spread(rewards: Sequence[float]) -> bool:
    known = [reward for reward in rewards if not math.isnan(reward)]
    return min(known, default=0.0) < max(known, default=0.0)


def _tokens(samples: Sequence[Sample]) -> int:
    return sum(sample.length for sample in samples)
