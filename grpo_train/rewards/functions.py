"""Reward functions: what a verdict is worth. Each is logged under its own name; ``algorithm.reward_weights`` weighs.

Built in:

- ``accuracy``: ``task.correct_reward`` (2.0) for a right answer, ``task.incorrect_reward`` (0.0) for any other;
- ``format``: 1.0 where the format is right, whatever the answer;
- ``tag_count``: the way there: a third for each tag of the format that stands in it once, see :func:`tag_count`;
- ``reasoning``: up to 1.0 for written-out reasoning, see :func:`reasoning`;
- ``correct_and_short``: 1.0 for a right answer, less the more of the budget it used up, see :func:`correct_and_short`;
- ``score``: the points that the task itself gives (code that runs, a game that is won).

A name with a colon is a function of the user's own: ``module:function`` or ``path/to/file.py:function``, called with
an :class:`~grpo_train.rewards.types.Attempt` and its :class:`~grpo_train.rewards.types.Verdict`, returning a number,
or None where it does not apply.

``task.reward_control`` replaces all of them with a control for honest baselines (Shao et al. 2025, arXiv 2506.10947):
``random`` (``correct_reward`` with probability one half), ``inverted`` (paid for wrong answers) or ``format_only``.
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

RewardFunction = Callable[[Attempt, Verdict], "float | None"]

CONTROLS = ("none", "random", "inverted", "format_only")


@dataclass(frozen=True)
class Grade:
    """A verdict and what each reward function gives for it."""

    verdict: Verdict
    rewards: dict[str, float | None] = field(default_factory=dict)
    """By function name; None where a function does not apply."""

    @property
    def reward(self) -> float:
        """Sum of the rewards that apply, unweighted."""
        return sum(value for value in self.rewards.values() if value is not None)


class Rewards:
    """The reward functions of a run."""

    def __init__(self, config: schema.Task, default: Sequence[str], *, max_completion_length: int, seed: int) -> None:
        """Resolve ``task.rewards`` (or a task's ``default``). Raises TaskError for a name that is none."""
        self._functions: dict[str, RewardFunction] = {}
        if config.reward_control != "none":
            self._functions[config.reward_control] = _control(config, seed)
            return
        for name in config.rewards or default:
            short, function = _resolve(name, config, max_completion_length)
            if short in self._functions:
                raise TaskError(f"task.rewards: two reward functions are called '{short}'; rename one")
            self._functions[short] = function

    @property
    def names(self) -> list[str]:
        """The names under which they are logged and weighted."""
        return list(self._functions)

    def __call__(self, attempt: Attempt, verdict: Verdict) -> Grade:
        """Raises TaskError where a user's own function raises or returns no number."""
        return Grade(verdict, {name: _checked(name, f, attempt, verdict) for name, f in self._functions.items()})


def load_rewards(task: Task, config: schema.Config) -> Rewards:
    """The reward functions of a task under a run's configuration.

    Raises TaskError for a function that does not exist, and for weights of functions that take no part.
    """
    rewards = Rewards(
        config.task,
        task.rewards,
        max_completion_length=config.rollout.max_completion_length,
        seed=config.run.seed,
    )
    names = [*rewards.names, *(["overlong"] if config.algorithm.overlong_buffer else [])]
    if unknown := sorted(set(config.algorithm.reward_weights) - set(names)):
        raise TaskError(
            f"algorithm.reward_weights: no reward function is called {', '.join(unknown)}; there are {', '.join(names)}"
        )
    return rewards


def reasoning(completion: str, target_words: int = 40) -> float:
    """Up to 1.0 for reasoning before ``</think>``: half for its length (up to ``target_words`` words), half for steps.

    Steps are lines or sentences of three words or more; four of them are enough. Repeated ones (also the same
    words in another order) and words repeated in one count once, and no word counts in more than three of them, so that
    padding does not pay.
    """
    thinking, closed, _ = completion.partition("</think>")
    if not closed:
        return 0.0
    parts = re.split(r"\n|[.;](?!\S)", thinking.replace("<think>", " ").lower())  # 3.50 is one word
    steps = {frozenset(part.split()) for part in parts if len(part.split()) >= 3}
    words = sum(min(3, count) for count in Counter(word for step in steps for word in step).values())
    return 0.5 * min(1.0, words / target_words) + 0.5 * min(1.0, len(steps) / 4)


def tag_count(completion: str) -> float:
    """A third for each of ``</think>``, ``<answer>`` and ``</answer>`` that is said exactly once, wherever it stands.

    For models that hardly ever get the format right by chance (open-r1's ``tag_count_reward``, with quarters).
    """
    tags = (CLOSE_THINK, OPEN_ANSWER, CLOSE_ANSWER)
    return sum(completion.count(tag) == 1 for tag in tags) / len(tags)


def correct_and_short(verdict: Verdict, length: int, budget: int) -> float:
    """1.0 for a right answer at length 0, falling linearly to 0.5 at the generation ``budget``; 0 for a wrong one."""
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
            f"task.rewards: no reward function is called '{name}'; there are {', '.join(built_in)}, and your own as "
            "module:function"
        )
    return name.rpartition(":")[2], load_function(name, "task.rewards")


def _control(config: schema.Task, seed: int) -> RewardFunction:
    def drawn(attempt: Attempt, verdict: Verdict) -> float:
        coin = random.Random(f"reward {seed} {attempt.key}").random() < 0.5
        return config.correct_reward if coin else config.incorrect_reward

    def inverted(attempt: Attempt, verdict: Verdict) -> float:
        return config.incorrect_reward if verdict.correct else config.correct_reward

    def format_only(attempt: Attempt, verdict: Verdict) -> float:
        return config.correct_reward if verdict.formatted else config.incorrect_reward

    return {"random": drawn, "inverted": inverted, "format_only": format_only}[config.reward_control]


def _checked(name: str, function: RewardFunction, attempt: Attempt, verdict: Verdict) -> float | None:
    try:
        value = function(attempt, verdict)
    except (Exception, SystemExit) as error:  # a user's own function: whatever it raises, its name is what they need
        raise TaskError(f"task.rewards: '{name}' raised {type(error).__name__}: {error}") from error
    if value is None:
        return None
    try:
        checked = math.nan if isinstance(value, str | bytes) else float(value)
    except Exception:  # a list, a tensor of several numbers
        checked = math.nan
    if not math.isfinite(checked):
        raise TaskError(f"task.rewards: '{name}' returned {str(value)[:60]!r}, which is no number to learn from")
    return checked
