"""Reward functions: the value of a verdict. Each is logged by name and weighted by ``algorithm.reward_weights``.

Built in:

- ``accuracy``: ``task.correct_reward`` (2.0) for a correct answer, ``task.incorrect_reward`` (0.0) otherwise;
- ``format``: 1.0 for the correct format, whatever the answer;
- ``tag_count``: partial credit for the format, a third for each tag that appears exactly once, see :func:`tag_count`;
- ``reasoning``: up to 1.0 for written-out reasoning, see :func:`reasoning`;
- ``correct_and_short``: 1.0 for a correct answer, less for a longer one, see :func:`correct_and_short`;
- ``score``: the task's own score (passed tests, a game's return).

A name with a colon is a user-defined function: ``module:function`` or ``path/to/file.py:function``. It is called with
an :class:`~grpo_train.rewards.types.Attempt` and its :class:`~grpo_train.rewards.types.Verdict` and returns a number,
or None where it does not apply.

``task.reward_control`` replaces all of them with a negative control (Shao et al. 2025, arXiv 2506.10947): ``random``
(``correct_reward`` with probability 0.5), ``inverted`` (pays for wrong answers) or ``format_only``.
"""

from __future__ import annotations

import math
import random
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from grpo_train.config import schema
from grpo_train.rewards.tags import CLOSE_ANSWER, CLOSE_THINK, OPEN_ANSWER
from grpo_train.rewards.types import Attempt, Task, TaskError, Verdict
from grpo_train.rewards.user_code import load_function
from grpo_train.run_dir.suggest import did_you_mean

RewardFunction = Callable[[Attempt, Verdict], "float | None"]


@dataclass(frozen=True)
class Grade:
    """A verdict and its rewards."""

    verdict: Verdict
    rewards: dict[str, float | None] = field(default_factory=dict)
    """By function name; None where a function does not apply."""


class Rewards:
    """The reward functions of a run."""

    def __init__(self, config: schema.Task, default: Sequence[str], *, max_completion_length: int, seed: int) -> None:
        """Resolve ``task.rewards``, or ``default`` where it is empty. Raises TaskError for an unknown name.

        ``max_completion_length`` is in tokens; ``seed`` seeds the ``random`` control.
        """
        self._functions: dict[str, RewardFunction] = {}
        if config.reward_control != "none":
            self._functions[config.reward_control] = _control(config, seed)
            return
        for name in config.rewards or default:
            log_name, function = _resolve(name, config, max_completion_length)
            if log_name in self._functions:
                raise TaskError(f"task.rewards: duplicate reward function '{log_name}'; rename one")
            self._functions[log_name] = function

    @property
    def names(self) -> list[str]:
        """Names used in the log and in ``algorithm.reward_weights``."""
        return list(self._functions)

    def __call__(self, attempt: Attempt, verdict: Verdict) -> Grade:
        """Grade an attempt. Raises TaskError if a user-defined function raises or returns a non-finite value."""
        return Grade(verdict, {name: _checked(name, f, attempt, verdict) for name, f in self._functions.items()})


def load_rewards(task: Task, config: schema.Config) -> Rewards:
    """Load the reward functions of a run. Raises TaskError for an unknown function or a weight without a function."""
    rewards = Rewards(
        config.task, task.rewards, max_completion_length=config.rollout.max_completion_length, seed=config.run.seed
    )
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


def _resolve(name: str, config: schema.Task, budget: int) -> tuple[str, RewardFunction]:
    built_in: dict[str, RewardFunction] = {
        "accuracy": lambda _, verdict: config.correct_reward if verdict.correct else config.incorrect_reward,
        "format": lambda _, verdict: float(verdict.formatted),
        "tag_count": lambda attempt, _: tag_count(attempt.completion),
        "reasoning": lambda attempt, _: reasoning(attempt.completion),
        "correct_and_short": lambda attempt, verdict: correct_and_short(verdict, attempt.length, budget),
        "score": lambda _, verdict: verdict.score,
    }
    if name in built_in:
        return name, built_in[name]
    if ":" not in name:
        raise TaskError(
            f"task.rewards: unknown reward function '{name}'; {did_you_mean(name, built_in)} "
            "(user-defined: module:function)"
        )
    return name.rpartition(":")[2], load_function(name, "task.rewards")


def _control(config: schema.Task, seed: int) -> RewardFunction:
    pays: dict[str, Callable[[Attempt, Verdict], bool]] = {
        "random": lambda attempt, _: random.Random(f"reward {seed} {attempt.key}").random() < 0.5,
        "inverted": lambda _, verdict: not verdict.correct,
        "format_only": lambda _, verdict: verdict.formatted,
    }
    rule = pays[config.reward_control]
    return lambda attempt, verdict: config.correct_reward if rule(attempt, verdict) else config.incorrect_reward


def _checked(name: str, function: RewardFunction, attempt: Attempt, verdict: Verdict) -> float | None:
    try:
        value = function(attempt, verdict)
    except (Exception, SystemExit) as error:  # user code may raise anything
        message = f"task.rewards: '{name}' raised {type(error).__name__}: {error}"
        raise TaskError(message, code="reward_raised") from error  # another attempt may pass: it may ask a service
    if value is None:
        return None
    try:
        checked = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # a list, or a tensor of several values
        checked = math.nan
    if not math.isfinite(checked):
        raise TaskError(f"task.rewards: '{name}' returned {str(value)[:60]!r}; expected a finite number or None")
    return checked
