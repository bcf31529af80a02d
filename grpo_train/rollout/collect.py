"""Collectors: from prompts to judged completions with rewards. Judging runs while the remaining ones are generated.

Samples of a *group* share a baseline: the completions of one prompt, or the turns of one self-play game. A collector
fills the groups of its rank, at most ``rollout.num_generations`` slots each.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from grpo_train.algorithm import overlong_penalty
from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy
from grpo_train.rewards import Rewards, RewardValues
from grpo_train.rewards.tags import closes_thoughts
from grpo_train.rollout import Completion, RolloutBackend, seed_of
from grpo_train.rollout.prompts import Prompt, end_of
from grpo_train.tasks import Attempt, Problem, Task, Verdict


class Role(NamedTuple):
    """One side of a self-play game; its rewards are compared to its own baseline."""

    game: str
    name: str

    @property
    def label(self) -> str:
        """Text in log rows and metric keys: "tictactoe/X"."""
        return f"{self.game}/{self.name}"


@dataclass(frozen=True)
class Sample:
    """A judged completion with its rewards."""

    group: int
    """Index of its prompt (or game) in the buffer."""
    slot: int
    """Index in its group (in a game: the turn)."""
    problem: Problem
    """Without ``data`` where it comes from another rank."""
    text: str
    prompt_length: int
    length: int
    """Tokens of the completion."""
    truncated: bool
    verdict: Verdict
    rewards: Mapping[str, float | None]
    """By function; None where a function does not apply."""
    role: Role | None = None
    """Set in self-play; None = the baseline is the group's mean."""
    completion: Completion | None = None
    """Its tokens; None where they are those of another rank."""

    @classmethod
    def of(
        cls, group: int, slot: int, attempt: Attempt, completion: Completion, verdict: Verdict, rewards: RewardValues,
        role: Role | None = None,
    ) -> Sample:  # fmt: skip
        """The sample that an attempt was, on the rank that generated it."""
        return cls(
            group, slot, attempt.problem, attempt.completion, len(completion.prompt_ids), len(completion.ids),
            not completion.finished, verdict, rewards, role, completion,
        )  # fmt: skip


class Collector(Protocol):
    """Fills a rollout buffer."""

    def generate_and_judge(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample]:
        """Samples of this rank's groups, by group and slot.

        Args:
            buffer_index: counts the run's buffers from 0; with group and slot it identifies an attempt.
            groups, prompts: index of each group in the buffer, and its prompt.
        """
        ...


class SingleTurn:
    """:class:`Collector` of ``num_generations`` independently judged completions per prompt."""

    def __init__(self, task: Task, rewards: Rewards, backend: RolloutBackend, policy: Policy, config: Config) -> None:
        self._task, self._rewards, self._backend = task, rewards, backend
        self._policy, self._config = policy, config
        self._judges = ThreadPoolExecutor(judge_threads(config), thread_name_prefix="judge") if task.slow else None
        """Threads for a task whose judge waits for another process."""

    def generate_and_judge(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample]:
        """See :meth:`Collector.generate_and_judge`."""
        generations = self._config.rollout.num_generations
        attempts: dict[int, Attempt] = {}
        judged: dict[int, _Judged | Future[_Judged]] = {}

        def judge(index: int, attempt: Attempt) -> None:
            attempts[index] = attempt
            judged[index] = self._judges.submit(self._judge, attempt) if self._judges else self._judge(attempt)

        completions = generate_groups(self._backend, self._policy, self._config, buffer_index, groups, prompts, judge)
        order = range(len(completions))
        found = [each.result() if isinstance(each, Future) else each for each in (judged[i] for i in order)]
        verdicts = [verdict for verdict, _ in found]
        started, tried = [values for _, values in found], [attempts[i] for i in order]
        rewards = self._rewards.complete(started, tried, verdicts, generations)
        return [
            Sample.of(
                groups[i // generations], i % generations, tried[i], completions[i], verdicts[i],
                {**rewards[i], **reward_for_length(completions[i], self._config)},
            )
            for i in order
        ]  # fmt: skip

    def _judge(self, attempt: Attempt) -> _Judged:
        verdict = self._task.judge(attempt)
        return verdict, self._rewards.start(attempt, verdict)


_Judged = tuple[Verdict, RewardValues]


def reward_for_length(completion: Completion, config: Config) -> RewardValues:
    """DAPO's reward ``overlong``, where it is on."""
    if not (buffer := config.algorithm.overlong_buffer):
        return {}
    length = torch.tensor([len(completion.ids)])
    return {"overlong": float(overlong_penalty(length, config.rollout.max_completion_length, buffer))}


def generate_groups(
    backend: RolloutBackend,
    policy: Policy,
    config: Config,
    buffer_index: int,
    groups: Sequence[int],
    prompts: Sequence[Prompt],
    on_attempt: Callable[[int, Attempt], None],
) -> list[Completion]:
    """Generate ``rollout.num_generations`` consecutive completions per prompt.

    ``on_attempt`` gets each one's index and attempt as soon as it is done, in any order. Other arguments as in
    :meth:`Collector.generate_and_judge`.
    """
    generations = config.rollout.num_generations
    repeated = [prompt for prompt in prompts for _ in range(generations)]
    keys = [f"{buffer_index}/{group}/{slot}" for group in groups for slot in range(generations)]

    def hand_over(index: int, completion: Completion) -> None:
        on_attempt(index, attempt_of(repeated[index].problem, completion, keys[index], policy))

    return generate_completions(backend, config, repeated, keys, hand_over)


def attempt_of(problem: Problem, completion: Completion, key: str, policy: Policy) -> Attempt:
    """What graders and reward functions get of a completion."""
    return Attempt(
        problem=problem,
        completion=policy.text(completion.ids),
        truncated=not completion.finished,
        length=len(completion.ids),
        key=key,
        ids=completion.ids,
        thoughts_closed=closes_thoughts(end_of(completion.prompt_ids, policy.tokenizer)),
    )


def generate_completions(
    backend: RolloutBackend,
    config: Config,
    prompts: Sequence[Prompt],
    keys: Sequence[str],
    on_done: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:
    """Generate one completion per prompt with the settings of the ``rollout`` section.

    A completion's key, its unique name in the run, and ``run.seed`` determine its random numbers, on whatever rank it
    is generated.
    """
    rollout = config.rollout
    return backend.generate(
        [prompt.ids for prompt in prompts],
        seeds=[seed_of(config.run.seed, "rollout", key) for key in keys],
        max_completion_length=rollout.max_completion_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        batch_size=rollout.generation_batch_size,
        on_done=on_done,
    )


def judge_threads(config: Config) -> int:
    """Number of programs that this process runs at once."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun: processes on this machine
    return config.sandbox.workers or max(1, len(os.sched_getaffinity(0)) // here)
