"""The verdict on a completion whose answer is a text that the task itself recognises: a word, yes or no, a time."""

from __future__ import annotations

from collections.abc import Callable

from grpo_train.rewards.tags import after_thoughts, last_tagged, strict_answer
from grpo_train.rewards.types import Attempt, Verdict

MAX_CHARS = 300
"""A longer answer is prose; ``matches`` never sees it."""


def judge_text(attempt: Attempt, matches: Callable[[str], bool]) -> Verdict:
    """Right is an answer in strict format (see :mod:`grpo_train.rewards.tags`) that ``matches``.

    ``matches`` gets the answer without the space around it, at most :data:`MAX_CHARS` long, and must not raise. Reasons
    are ``ok``, ``wrong``, ``truncated`` (wrong, whatever it says: as for numbers) and those of the format.
    """
    answer, problem = strict_answer(attempt.completion)
    right = answer is not None and len(answer) <= MAX_CHARS and matches(answer)
    lenient = last_answer(attempt.completion)
    cut = attempt.truncated
    reason = problem if answer is None else "ok" if right else "wrong"
    return Verdict(
        correct=right and not cut,
        formatted=answer is not None and not cut,
        reason="truncated" if cut else reason,
        answer=answer,
        tolerant=len(lenient) <= MAX_CHARS and matches(lenient),
        metrics={"hacking/multiple_answers": float(problem == "multiple_answers")},
    )


def last_answer(completion: str) -> str:
    """The tolerant reading: the last pair of tags, else the last line that has anything on it, without the thoughts."""
    tagged = last_tagged(completion)
    if tagged is not None:
        return tagged
    lines = after_thoughts(completion).strip().splitlines()
    return lines[-1].strip() if lines else ""
