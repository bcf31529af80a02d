"""From prompts to graded samples: generation, and judging of what was said while the rest is still being generated.

A *group* is what shares a baseline: the completions of one prompt, or the turns of one game of self-play. A collector
fills the groups of its rank; a group that needs fewer places than it has leaves ``None``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol

from grpo_train.config.schema import Config
from grpo_train.rewards import Grade, Rewards
from grpo_train.rollout import Completion, RolloutBackend, seed_of
from grpo_train.rollout.prompts import Prompt
from grpo_train.tasks import Attempt, Task


@dataclass(frozen=True)
class Sample:
    """A completion with all that is known of it."""

    prompt: Prompt
    completion: Completion
    text: str
    grade: Grade
    role: str = ""
    """Self-play: "GAME/ROLE", whose baseline the reward is compared to; "" = the group's mean is the baseline."""


class Collector(Protocol):
    """Who fills a rollout buffer."""

    def collect(self, number: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample | None]:
        """The samples of this rank's groups, ``rollout.num_generations`` places each, side by side.

        Args:
            number: which buffer of the run, 0, 1, …; with the group and the place it names an attempt for good.
            groups, prompts: the groups' numbers in the buffer and what each is asked.
        """
        ...


class SingleTurn:
    """Every prompt is answered ``num_generations`` times, every answer is judged by itself."""

    def __init__(self, task: Task, rewards: Rewards, backend: RolloutBackend, tokenizer: Any, config: Config) -> None:
        self._task, self._rewards, self._backend, self._tokenizer = task, rewards, backend, tokenizer
        self._config = config
        self._judges = JudgePool(task, rewards, judge_threads(config))

    def collect(self, number: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample | None]:
        """See :meth:`Collector.collect`."""
        generations = self._config.rollout.num_generations
        attempts: dict[int, Attempt] = {}
        grades: dict[int, Future[Grade]] = {}

        def judge(place: int, attempt: Attempt) -> None:
            attempts[place], grades[place] = attempt, self._judges.submit(attempt)

        completions = write(self._backend, self._tokenizer, self._config, number, groups, prompts, judge)
        return [
            Sample(prompts[i // generations], completion, attempts[i].completion, grades[i].result())
            for i, completion in enumerate(completions)
        ]


def write(
    backend: RolloutBackend,
    tokenizer: Any,
    config: Config,
    number: int,
    groups: Sequence[int],
    prompts: Sequence[Prompt],
    on_attempt: Callable[[int, Attempt], None],
) -> list[Completion]:
    """``rollout.num_generations`` completions of each prompt, side by side; each is handed to ``on_attempt`` with its
    place as soon as it is there, in any order. ``number`` and ``groups`` as in :meth:`Collector.collect`."""
    generations = config.rollout.num_generations
    asked = [prompt for prompt in prompts for _ in range(generations)]
    keys = [f"{number}/{group}/{place}" for group in groups for place in range(generations)]

    def hand_over(place: int, completion: Completion) -> None:
        attempt = Attempt(
            problem=asked[place].problem,
            completion=tokenizer.decode(completion.ids, skip_special_tokens=True),
            truncated=not completion.finished,
            length=len(completion.ids),
            key=keys[place],
        )
        on_attempt(place, attempt)

    return sample(backend, config, asked, keys, hand_over)


def sample(
    backend: RolloutBackend,
    config: Config,
    prompts: Sequence[Prompt],
    keys: Sequence[str],
    on_done: Callable[[int, Completion], None] | None = None,
) -> list[Completion]:
    """A completion of each prompt under the ``rollout`` section. ``keys``: each one's name in the run, which with
    ``run.seed`` says what is drawn, whoever generates it."""
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


class JudgePool:
    """Grades attempts: at once where judging is arithmetic, on threads where it waits for another process."""

    def __init__(self, task: Task, rewards: Rewards, threads: int) -> None:
        self._task, self._rewards = task, rewards
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="judge") if task.slow else None

    def submit(self, attempt: Attempt) -> Future[Grade]:
        """The attempt's grade, now or later; a failure is raised where its result is asked for."""
        if self._pool is not None:
            return self._pool.submit(self._grade, attempt)
        done: Future[Grade] = Future()
        done.set_result(self._grade(attempt))
        return done

    def _grade(self, attempt: Attempt) -> Grade:
        return self._rewards(attempt, self._task.judge(attempt))


def judge_threads(config: Config) -> int:
    """Programs that this process runs at once."""
    return config.sandbox.workers or max(1, len(os.sched_getaffinity(0)) // config.run.nproc)
