"""Collectors: from prompts to graded samples. Judging runs while the remaining completions are generated.

Samples of a *group* share a baseline: the completions of one prompt, or the turns of one self-play game. A collector
fills the groups of its rank, ``rollout.num_generations`` slots each; an unused slot is ``None``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy
from grpo_train.rewards import Grade, Rewards
from grpo_train.rewards.tags import closes_thoughts
from grpo_train.rollout import Completion, RolloutBackend, seed_of
from grpo_train.rollout.prompts import Prompt, end_of
from grpo_train.tasks import Attempt, Task


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
    """A graded completion."""

    prompt: Prompt
    completion: Completion
    text: str
    grade: Grade
    role: Role | None = None
    """Set in self-play; None = the baseline is the group's mean."""


class Collector(Protocol):
    """Fills a rollout buffer."""

    def collect(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample | None]:
        """Samples of this rank's groups, ``rollout.num_generations`` consecutive slots each.

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

    def collect(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample | None]:
        """See :meth:`Collector.collect`."""
        generations = self._config.rollout.num_generations
        attempts: dict[int, Attempt] = {}
        grades: dict[int, Grade | Future[Grade]] = {}

        def judge(index: int, attempt: Attempt) -> None:
            attempts[index] = attempt
            grades[index] = self._judges.submit(self._grade, attempt) if self._judges else self._grade(attempt)

        completions = generate_groups(self._backend, self._policy, self._config, buffer_index, groups, prompts, judge)
        order = range(len(completions))
        started = [grade.result() if isinstance(grade, Future) else grade for grade in (grades[i] for i in order)]
        found = self._rewards.complete(started, [attempts[i] for i in order], generations)
        return [
            Sample(prompts[i // generations], completion, attempts[i].completion, found[i])
            for i, completion in enumerate(completions)
        ]

    def _grade(self, attempt: Attempt) -> Grade:
        return self._rewards.start(attempt, self._task.judge(attempt))


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
    :meth:`Collector.collect`.
    """
    generations = config.rollout.num_generations
    repeated = [prompt for prompt in prompts for _ in range(generations)]
    keys = [f"{buffer_index}/{group}/{slot}" for group in groups for slot in range(generations)]

    def hand_over(index: int, completion: Completion) -> None:
        attempt = Attempt(
            problem=repeated[index].problem,
            completion=policy.text(completion.ids),
            truncated=not completion.finished,
            length=len(completion.ids),
            ids=completion.ids,
            thoughts_closed=closes_thoughts(end_of(repeated[index].ids, policy.tokenizer)),
            key=keys[index],
        )
        on_attempt(index, attempt)

    return generate_completions(backend, config, repeated, keys, hand_over)


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
