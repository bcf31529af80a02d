"""Rollouts against an opponent: its answer to the policy's program decides the reward.

The opponent decodes greedily. It is the model the run started from (its frozen weights temporarily replace the
policy's), an older checkpoint, or another model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from grpo_train.config.schema import Config
from grpo_train.policy.loading import Policy, load_policy
from grpo_train.policy.locate import PolicyError, base_of_checkpoint, check_weights
from grpo_train.rewards import Rewards
from grpo_train.rollout import RolloutBackend
from grpo_train.rollout.backends import decoding_steps, make_backend
from grpo_train.rollout.collect import Sample, generate_groups, judge_threads, reward_for_length
from grpo_train.rollout.prompts import Prompt, encode_prompts
from grpo_train.tasks import Attempt, Problem
from grpo_train.tasks.shared.adversarial import AdversarialTask, Play

START = "start"
"""``task.opponent``: the model the run started from."""
STOP = ("</answer>",)
"""Stop string of an opponent's answer."""

Frozen = Callable[[], AbstractContextManager[None]]
"""Makes the context in which the policy's model is the opponent."""


class GreedyOpponent:
    """A model that answers questions greedily."""

    def __init__(
        self,
        policy: Policy,
        config: Config,
        frozen: Frozen = nullcontext,
        failed: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """``failed``: see :func:`~grpo_train.rollout.backends.make_backend`."""
        self._policy, self._rollout, self._frozen = policy, config.rollout, frozen
        rollout, buffers = config.rollout, -(-config.run.total_steps // config.steps_per_buffer)
        questions = -(-rollout.buffer_size // config.run.nproc) * rollout.num_generations
        steps = decoding_steps(questions, rollout.max_completion_length, rollout.generation_batch_size)
        self._backend = make_backend(config, policy, STOP, failed, steps=buffers * steps)

    @property
    def fallbacks(self) -> dict[str, str]:
        """Of its backend."""
        return self._backend.fallbacks

    def answer(self, problems: Sequence[Problem]) -> list[str]:
        """Answer texts without the prompts; equal problems are answered once."""
        unique = list(dict.fromkeys(problems))
        if not unique:
            return []
        with self._frozen(), self._policy.autocast():
            self._backend.sync()
            completions = self._backend.generate(
                encode_prompts(unique, self._policy.tokenizer),
                seeds=[0] * len(unique),
                max_completion_length=self._rollout.max_completion_length,
                temperature=0.0,
                batch_size=self._rollout.generation_batch_size,
            )
        texts = [self._policy.text(one.ids) for one in completions]
        answers: dict[Problem, str] = dict(zip(unique, texts, strict=True))
        return [answers[problem] for problem in problems]


class Adversary:
    """:class:`~grpo_train.rollout.collect.Collector` of a game between the policy and an opponent."""

    def __init__(
        self,
        task: AdversarialTask,
        rewards: Rewards,
        backend: RolloutBackend,
        opponent: GreedyOpponent,
        policy: Policy,
        config: Config,
    ) -> None:
        self._task, self._rewards, self._backend, self.opponent = task, rewards, backend, opponent
        self._policy, self._config = policy, config
        self._referees = ThreadPoolExecutor(judge_threads(config), thread_name_prefix="referee")

    def generate_and_judge(self, buffer_index: int, groups: Sequence[int], prompts: Sequence[Prompt]) -> list[Sample]:
        """See :meth:`~grpo_train.rollout.collect.Collector.generate_and_judge`.

        Programs run while the next ones are generated; the opponent answers after the last one has run.
        """
        generations = self._config.rollout.num_generations
        attempts: dict[int, Attempt] = {}
        plays: dict[int, Future[Play]] = {}

        def referee(index: int, attempt: Attempt) -> None:
            attempts[index], plays[index] = attempt, self._referees.submit(self._task.play, attempt)

        completions = generate_groups(self._backend, self._policy, self._config, buffer_index, groups, prompts, referee)
        questions = {
            i: self._task.question(play.result()) for i, play in sorted(plays.items()) if play.result().is_valid
        }
        replies = dict(zip(questions, self.opponent.answer(list(questions.values())), strict=True))
        samples = []
        for i, completion in enumerate(completions):
            attempt = replace(attempts[i], reply=replies.get(i))
            verdict = self._task.judge(attempt)
            group, slot = groups[i // generations], i % generations
            values = {**self._rewards(attempt, verdict), **reward_for_length(completion, self._config)}
            samples.append(Sample.of(group, slot, attempt, completion, verdict, values))
        return samples


def make_adversary(
    task: AdversarialTask,
    rewards: Rewards,
    backend: RolloutBackend,
    policy: Policy,
    config: Config,
    root: Path,
    start: Frozen,
    failed: Mapping[str, str] = MappingProxyType({}),
) -> Adversary:
    """Make the collector of an adversarial task, with the opponent named by ``task.opponent``.

    ``start`` makes the context in which ``policy``'s model is the one the run started from. ``failed``: see
    :func:`~grpo_train.rollout.backends.make_backend`. Raises PolicyError if the opponent cannot be loaded.
    """
    if config.task.opponent == START:
        opponent = GreedyOpponent(policy, config, start, failed)
    else:
        opponent = GreedyOpponent(load_opponent(config, root, policy), config, failed=failed)
    return Adversary(task, rewards, backend, opponent, policy, config)


def load_opponent(config: Config, root: Path, policy: Policy) -> Policy:
    """Load the model named by ``task.opponent`` on the policy's device.

    It is the directory of a checkpoint or model (relative to the root, or any), a hub name or a short name. Raises
    PolicyError.
    """
    name = config.task.opponent
    folder = next((path for path in (root / name, Path(name).expanduser()) if path.is_dir()), None)
    try:
        if folder is None:
            settings = config.model.model_copy(update={"backbone": name})
            return load_policy(settings, root, policy.device, trainable=False)
        base = base_of_checkpoint(folder, root)
        return load_policy(config.model, root, policy.device, weights=check_weights(folder), base=base, trainable=False)
    except PolicyError as error:
        raise PolicyError(f"task.opponent '{name}' (or {START}): {error}") from error
