"""Reward functions: the value of a verdict. Each is logged by name and weighted by ``algorithm.reward_weights``.

Built in:

- ``accuracy``: ``task.correct_reward`` (2.0) for a correct answer, ``task.incorrect_reward`` (0.0) otherwise;
- ``format``: 1.0 for the correct format, whatever the answer;
- ``tag_count``: partial credit for the format, a third for each tag that appears exactly once, see :func:`tag_count`;
- ``reasoning``: up to 1.0 for written-out reasoning, see :func:`reasoning`;
- ``correct_and_short``: 1.0 for a correct answer, less for a longer one, see :func:`correct_and_short`;
- ``score``: the task's own score (passed tests, a game's return).

A name with a colon is a user-defined function: ``module:function`` or ``path/to/file.py:function``, called with an
:class:`~grpo_train.rewards.types.Attempt` and its :class:`~grpo_train.rewards.types.Verdict`, or as TRL calls it for
the completions of a prompt (:mod:`grpo_train.rewards.signatures`). It returns a number, or None where it does not
apply, and runs in a separate process (:mod:`grpo_train.rewards.user_functions`).

``task.reward_control`` replaces all of them with a negative control (Shao et al. 2025, arXiv 2506.10947): ``random``
(``correct_reward`` with probability 0.5), ``inverted`` (pays for wrong answers) or ``format_only``.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from grpo_train.config import schema
from grpo_train.rewards.helpers.messages import Call
from grpo_train.rewards.signatures import Kind, split_prefix
from grpo_train.rewards.tags import CLOSE_ANSWER, CLOSE_THINK, OPEN_ANSWER
from grpo_train.rewards.types import LARGEST_REWARD, Attempt, Task, TaskError, Verdict
from grpo_train.rewards.user_functions import UserFunctions
from grpo_train.run_dir.errors import did_you_mean

RewardFunction = Callable[[Attempt, Verdict], "float | None"]


RewardValues = dict[str, float | None]
"""Rewards of an attempt by function; None where a function does not apply."""


class Rewards:
    """The reward functions of a run."""

    def __init__(
        self,
        config: schema.TaskConfig,
        default: Sequence[str],
        *,
        max_completion_length: int,
        seed: int,
        failure_file: Path | None = None,
    ) -> None:
        """Resolve ``task.rewards``, or ``default`` where it is empty. Raises TaskError for an unknown name.

        ``max_completion_length`` is in tokens; ``seed`` seeds the ``random`` control. ``failure_file`` gets the
        completions for which a user-defined function fails.
        """
        self._built_in: dict[str, RewardFunction] = {}
        self._user: dict[str, int] = {}
        """Index of each user-defined function in ``_functions``."""
        self._functions: UserFunctions | None = None
        self.names: list[str] = []
        """Names used in the log and in ``algorithm.reward_weights``."""
        if config.reward_control != "none":
            self.names = [config.reward_control]
            self._built_in[config.reward_control] = _control(config, seed)
            return
        users: list[str] = []
        for name in config.rewards or default:
            log_name = split_prefix(name)[0].rpartition(":")[2]
            if log_name in self.names:
                raise TaskError(f"task.rewards: duplicate reward function '{log_name}'; rename one")
            self.names.append(log_name)
            if ":" in name:
                self._user[log_name] = len(users)
                users.append(name)
            else:
                self._built_in[name] = _resolve(name, config, max_completion_length)
        if users:
            modules = [name for name in (config.name, config.grader) if ":" in name]
            self._functions = UserFunctions(users, modules, timeout_s=config.reward_timeout, failure_file=failure_file)

    @property
    def has_user_functions(self) -> bool:
        """Whether one of them is user-defined."""
        return self._functions is not None

    def close(self) -> None:
        """End the process of the user-defined functions."""
        if self._functions is not None:
            self._functions.close()

    def __call__(self, attempt: Attempt, verdict: Verdict) -> RewardValues:
        """The rewards of an attempt. Raises TaskError if a user-defined function fails or a value is not finite or
        huge."""
        return self.complete([self.start(attempt, verdict)], [attempt], [verdict], 1)[0]

    def start(self, attempt: Attempt, verdict: Verdict) -> RewardValues:
        """The rewards of an attempt, without the functions that are called for all attempts at a problem."""
        values = {name: function(attempt, verdict) for name, function in self._built_in.items()}
        for name, value in values.items():
            if value is not None and not abs(value) <= LARGEST_REWARD:  # of a user's grader, or the config's
                raise TaskError(
                    f"task.rewards: '{name}' is {value:g}; expected None or at most {LARGEST_REWARD:g} in size"
                )
        for name in self._of_kind("attempt"):
            values[name] = self._values(name, [([attempt], [verdict])])[0][0]
        return values

    def complete(
        self, started: Sequence[RewardValues], attempts: Sequence[Attempt], verdicts: Sequence[Verdict], group_size: int
    ) -> list[RewardValues]:
        """Add the functions that are called for ``group_size`` consecutive attempts at a problem."""
        values = [dict(each) for each in started]
        calls: list[Call] = [
            (attempts[i : i + group_size], verdicts[i : i + group_size]) for i in range(0, len(attempts), group_size)
        ]
        for name in self._of_kind("trl"):
            found = [value for group in self._values(name, calls) for value in group]
            for row, value in zip(values, found, strict=True):
                row[name] = value
        return [{name: row[name] for name in self.names} for row in values]

    def _of_kind(self, kind: Kind) -> list[str]:
        return [name for name, index in self._user.items() if self._functions and self._functions.kinds[index] == kind]

    def _values(self, name: str, calls: Sequence[Call]) -> list[list[float | None]]:
        assert self._functions is not None
        return self._functions.values(self._user[name], calls)


class MixedRewards(Rewards):
    """The reward functions of a mixture: each problem has those of its part."""

    def __init__(self, parts: Mapping[str, Rewards]) -> None:
        self._parts = parts
        self.names = list(dict.fromkeys(name for part in parts.values() for name in part.names))

    @property
    def has_user_functions(self) -> bool:
        return any(part.has_user_functions for part in self._parts.values())

    def close(self) -> None:
        for part in self._parts.values():
            part.close()

    def start(self, attempt: Attempt, verdict: Verdict) -> RewardValues:
        return self._parts[attempt.problem.task].start(attempt, verdict)

    def complete(
        self, started: Sequence[RewardValues], attempts: Sequence[Attempt], verdicts: Sequence[Verdict], group_size: int
    ) -> list[RewardValues]:
        found: dict[int, RewardValues] = {}
        for label, part in self._parts.items():
            mine = [index for index, attempt in enumerate(attempts) if attempt.problem.task == label]
            values = part.complete(
                [started[i] for i in mine], [attempts[i] for i in mine], [verdicts[i] for i in mine], group_size
            )
            found.update(zip(mine, values, strict=True))
        return [found[index] for index in range(len(attempts))]


def load_rewards(task: Task, config: schema.Config, failure_file: Path | None = None) -> Rewards:
    """Load the reward functions of a run. Raises TaskError for an unknown function or a weight without a function."""

    def load(section: schema.TaskConfig, default: Sequence[str]) -> Rewards:
        budget, seed = config.rollout.max_completion_length, config.run.seed
        return Rewards(section, default, max_completion_length=budget, seed=seed, failure_file=failure_file)

    parts: Mapping[str, Task] = getattr(task, "parts", {})  # of a mixture
    sections = {part.part_label: part for part in config.task.parts or [config.task]}
    if parts:
        rewards: Rewards = MixedRewards({label: load(sections[label], part.rewards) for label, part in parts.items()})
    else:
        rewards = load(config.task, task.rewards)
    names = [*rewards.names, *(["overlong"] if config.algorithm.overlong_buffer else [])]
    if unknown := sorted(set(config.algorithm.reward_weights) - set(names)):
        raise TaskError(
            f"algorithm.reward_weights: '{unknown[0]}' is not a reward function of this run; "
            f"{did_you_mean(unknown[0], names)}"
        )
    return rewards


def reasoning(completion: str, target_words: int = 40) -> float:
    """Up to 1.0 for reasoning before ``</think>``: half for its length (up to ``target_words`` words), half for steps.

    Steps are lines or sentences of at least three words; four steps earn the full half. Padding does not pay: steps
    made of the same words count once, a word counts once per step, and in at most three steps.
    """
    thinking, closed, _ = completion.partition("</think>")
    if not closed:
        return 0.0
    parts = re.split(r"\n|[.;](?!\S)", thinking.replace("<think>", " ").lower())  # 3.50 is one word
    steps = {frozenset(part.split()) for part in parts if len(part.split()) >= 3}
    word_count = sum(min(3, count) for count in Counter(word for step in steps for word in step).values())
    return 0.5 * min(1.0, word_count / target_words) + 0.5 * min(1.0, len(steps) / 4)


def tag_count(completion: str) -> float:
    """A third for each of ``</think>``, ``<answer>`` and ``</answer>`` that appears exactly once, in any position.

    For models that rarely produce the whole format by chance (after open-r1's ``tag_count_reward``, which pays
    quarters).
    """
    tags = (CLOSE_THINK, OPEN_ANSWER, CLOSE_ANSWER)
    return sum(completion.count(tag) == 1 for tag in tags) / len(tags)


def correct_and_short(verdict: Verdict, length: int, budget: int) -> float:
    """1.0 for a correct answer of length 0, falling linearly to 0.5 at ``budget`` tokens; 0 for a wrong one."""
    return 1.0 - 0.5 * min(1.0, length / budget) if verdict.correct else 0.0


def _resolve(name: str, config: schema.TaskConfig, budget: int) -> RewardFunction:
    built_in: dict[str, RewardFunction] = {
        "accuracy": lambda _, verdict: config.correct_reward if verdict.correct else config.incorrect_reward,
        "format": lambda _, verdict: float(verdict.formatted),
        "tag_count": lambda attempt, _: tag_count(attempt.text),
        "reasoning": lambda attempt, _: reasoning(attempt.completion),
        "correct_and_short": lambda attempt, verdict: correct_and_short(verdict, attempt.length, budget),
        "score": lambda _, verdict: verdict.score,
    }
    if name in built_in:
        return built_in[name]
    near = did_you_mean(name, built_in)
    raise TaskError(f"task.rewards: unknown reward function '{name}'; {near} (your own: file.py:function)")


def _control(config: schema.TaskConfig, seed: int) -> RewardFunction:
    pays: dict[str, Callable[[Attempt, Verdict], bool]] = {
        "random": lambda attempt, _: random.Random(f"reward {seed} {attempt.key}").random() < 0.5,
        "inverted": lambda _, verdict: not verdict.correct,
        "format_only": lambda _, verdict: verdict.formatted,
    }
    rule = pays[config.reward_control]
    return lambda attempt, verdict: config.correct_reward if rule(attempt, verdict) else config.incorrect_reward
