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

from grpo_train.rewards import Grade, Rewards
from grpo_train.rollout import Completion, RolloutBackend
from grpo_train.rollout.prompts import Prompt
from grpo_train.schema import Config
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
        attempts: list[Attempt] = []
        grades: list[Future[Grade]] = []

        def judge(attempt: Attempt) -> None:
            attempts.append(attempt)
            grades.append(self._judges.submit(attempt))

        completions = write(self._backend, self._tokenizer, self._config, number, groups, prompts, judge)
        return [
            Sample(prompts[i // generations], completions[i], attempts[i].completion, grade.result())
            for i, grade in enumerate(grades)
        ]


def write(
    backend: RolloutBackend,
    tokenizer: Any,
    config: Config,
    number: int,
    groups: Sequence[int],
    prompts: Sequence[Prompt],
    on_attempt: Callable[[Attempt], None],
) -> list[Completion]:
    """``rollout.num_generations`` completions of each prompt, side by side; each is handed to ``on_attempt`` as soon as
    its batch is there, in order. ``number`` and ``groups`` as in :meth:`Collector.collect`."""
    rollout, written = config.rollout, 0

    def hand_over(completions: Sequence[Completion]) -> None:
        nonlocal written
        decoded = tokenizer.batch_decode([c.ids for c in completions], skip_special_tokens=True)
        for completion, text in zip(completions, decoded, strict=True):
            group, place = divmod(written, rollout.num_generations)
            written += 1
            on_attempt(
                Attempt(
                    problem=prompts[group].problem,
                    completion=text,
                    truncated=not completion.finished,
                    length=len(completion.ids),
                    key=f"{number}/{groups[group]}/{place}",
                )
            )

    return backend.generate(
        [prompt.ids for prompt in prompts],
        num_generations=rollout.num_generations,
        max_completion_length=rollout.max_completion_length,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        batch_size=rollout.generation_batch_size,
        on_batch=hand_over,
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
