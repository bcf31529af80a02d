"""Rollouts against an opponent: what the policy wrote is put to another model, whose answer decides what it was worth.

The opponent answers greedily. It is the model that the run started from (frozen, in place of the policy's weights while
it answers), an older checkpoint, or another model with weights of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError, base_of_checkpoint, check_weights
from grpo_train.rewards import Rewards
from grpo_train.rollout import RolloutBackend
from grpo_train.rollout.collect import Sample, judge_threads, write
from grpo_train.rollout.prompts import Prompt, encode
from grpo_train.rollout.transformers_backend import TransformersBackend
from grpo_train.tasks import Attempt, Problem, Task
from grpo_train.tasks.code_game import Play

START = "start"
"""``task.opponent``: the model that the run started from."""
STOP = ("</answer>",)
"""What ends an opponent's answer."""

Frozen = Callable[[], AbstractContextManager[None]]
"""Makes the context in which the policy's model is the opponent."""


@runtime_checkable
class AdversarialTask(Task, Protocol):
    """A task with a referee who rules on an attempt before an opponent is asked about it."""

    def play(self, attempt: Attempt) -> Play:
        """What the referee says; called from several threads at once."""

    def question(self, play: Play) -> Problem:
        """What the opponent is asked about a valid play."""


class Opponent:
    """A model that answers questions greedily."""

    def __init__(self, policy: Policy, budget: int, frozen: Frozen = nullcontext, batch_size: int = 0) -> None:
        """``budget``: tokens of an answer; ``batch_size``: answers generated at once, 0 = all."""
        self._policy, self._budget, self._frozen, self._batch_size = policy, budget, frozen, batch_size
        self._backend = TransformersBackend(policy.model, policy.tokenizer, stop=STOP)

    def answer(self, problems: Sequence[Problem]) -> list[str]:
        """Its answers, without the prompts; the same problem is answered once."""
        different = list(dict.fromkeys(problems))
        if not different:
            return []
        with self._frozen(), self._policy.autocast():
            completions = self._backend.generate(
                encode(different, self._policy.tokenizer),
                seeds=[0] * len(different),
                max_completion_length=self._budget,
                temperature=0.0,
                batch_size=self._batch_size,
            )
        texts = self._policy.tokenizer.batch_decode([one.ids for one in completions], skip_special_tokens=True)
        answers: dict[Problem, str] = dict(zip(different, texts, strict=True))
        return [answers[problem] for problem in problems]


class Adversary:
    """:class:`~grpo_train.rollout.collect.Collector` of a game between the policy and an opponent."""

    def __init__(
        self,
        task: AdversarialTask,
        rewards: Rewards,
        backend: RolloutBackend,
        opponent: Opponent,
        tokenizer: Any,
        config: Config,
    ) -> None:
        self._task, self._rewards, self._backend, self._opponent = task, rewards, backend, opponent
        self._tokenizer, self._config = tokenizer, config
        self._referees = ThreadPoolExecutor(judge_threads(config), thread_name_prefix="referee")

    def collect(self, number: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample | None]:
        """See :meth:`~grpo_train.rollout.collect.Collector.collect`.

        Programs are run while the next ones are written; the opponent answers when the last one has been run.
        """
        generations = self._config.rollout.num_generations
        attempts: dict[int, Attempt] = {}
        plays: dict[int, Future[Play]] = {}

        def referee(place: int, attempt: Attempt) -> None:
            attempts[place], plays[place] = attempt, self._referees.submit(self._task.play, attempt)

        completions = write(self._backend, self._tokenizer, self._config, number, groups, prompts, referee)
        asked = {i: self._task.question(play.result()) for i, play in sorted(plays.items()) if play.result().is_valid}
        replies = dict(zip(asked, self._opponent.answer(list(asked.values())), strict=True))
        samples: list[Sample | None] = []
        for i, completion in enumerate(completions):
            judged = replace(attempts[i], reply=replies.get(i))
            grade = self._rewards(judged, self._task.judge(judged))
            samples.append(Sample(prompts[i // generations], completion, judged.completion, grade))
        return samples


def make_adversary(
    task: AdversarialTask,
    rewards: Rewards,
    backend: RolloutBackend,
    policy: Policy,
    config: Config,
    root: Path,
    start: Frozen,
) -> Adversary:
    """The collector of an adversarial task, with the opponent that ``task.opponent`` names.

    Args:
        start: the context in which ``policy``'s model is the one that the run started from.

    Raises PolicyError where the opponent is no model.
    """
    budget, batch_size = config.rollout.max_completion_length, config.rollout.generation_batch_size
    if config.task.opponent == START:
        opponent = Opponent(policy, budget, start, batch_size)
    else:
        opponent = Opponent(load_opponent(config, root, policy), budget, batch_size=batch_size)
    return Adversary(task, rewards, backend, opponent, policy.tokenizer, config)


def load_opponent(config: Config, root: Path, policy: Policy) -> Policy:
    """``task.opponent``'s model on the policy's device: a checkpoint's or model's directory (in the root, or any),
    a hub name or a short name. Raises PolicyError."""
    name = config.task.opponent
    folder = next((place for place in (root / name, Path(name).expanduser()) if place.is_dir()), None)
    try:
        if folder is None:
            settings = config.model.model_copy(update={"backbone": name})
            return load_policy(settings, root, policy.device, trainable=False)
        base = base_of_checkpoint(folder, root)
        return load_policy(config.model, root, policy.device, weights=check_weights(folder), base=base, trainable=False)
    except PolicyError as error:
        raise PolicyError(f"task.opponent '{name}' (or {START}): {error}") from error
