"""Verdict on a completion whose answer is a text that the task recognizes: a word, yes or no, a time."""

from __future__ import annotations

from collections.abc import Callable

from grpo_train.rewards.tags import after_thoughts, last_tagged, strict_answer, tagged_verdict
from grpo_train.rewards.types import Attempt, Verdict

MAX_CHARS = 300
"""A longer answer is prose; ``matches`` never sees it."""


def judge_text(attempt: Attempt, matches: Callable[[str], bool]) -> Verdict:
    """Check the answer with ``matches``, in the strict and in the flexible reading (:mod:`grpo_train.rewards.tags`).

    ``matches`` gets the stripped answer, at most :data:`MAX_CHARS` long, and must not raise. Reasons: ``ok``,
    ``wrong``, ``truncated`` (always wrong, as for numbers) and the format errors.
    """
    answer, problem = strict_answer(attempt.text)
    right = answer is not None and len(answer) <= MAX_CHARS and matches(answer)
    flexible = last_answer(attempt.text)
    reason = problem if answer is None else "ok" if right else "wrong"
    return tagged_verdict(attempt, answer, reason, flexible=len(flexible) <= MAX_CHARS and matches(flexible))


def last_answer(completion: str) -> str:
    """The flexible reading: the last answer tag, else the last non-empty line after the thoughts."""
    tagged = last_tagged(completion)
    if tagged is not None:
        return tagged
    lines = after_thoughts(completion).strip().splitlines()
    return lines[-1].strip() if lines else ""
