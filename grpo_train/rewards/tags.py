"""Answer tags of the R1 format: ``</think>``, optional white space, ``<answer>…</answer>``.

The *strict* reading expects thoughts up to the first ``</think>`` (``<think>`` is optional, since the prompt may hold
it), optional white space, one answer, and nothing after it. Thoughts are free text: an ``<answer>`` among them neither
counts, nor breaks the format, nor ends the completion. A ``</think>`` at the end of the prompt counts, see
:attr:`Attempt.text <grpo_train.rewards.types.Attempt.text>`. After the first ``</think>`` a second guess ("</think>
<answer>5</answer> no </think> <answer>18</answer>") fails, however its tags are arranged.

The *flexible* reading takes the last ``<answer>``, in any position, closed or not.

The reference (understand-r1-zero, ``oat_math_grader.answer_tag_reward_fn``) requires exactly one space between the
tags and takes the text after the last ``<answer>``, so it accepts a second guess.
"""

from __future__ import annotations

from collections.abc import Mapping

from grpo_train.rewards.types import Attempt, Verdict

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"
OPEN_THINK, CLOSE_THINK = "<think>", "</think>"


def closes_thoughts(prompt: str) -> bool:
    """Whether a prompt ends in ``</think>``, as chat templates write it where thinking is off."""
    return prompt.rstrip().endswith(CLOSE_THINK)


def in_thoughts(prompt: str, completion: str) -> bool:
    """Whether a completion is still in its thoughts, which the prompt's end or the completion has opened."""
    is_open = prompt.rstrip().endswith(OPEN_THINK) or OPEN_THINK in completion.partition(OPEN_ANSWER)[0]
    return is_open and CLOSE_THINK not in completion


def strict_answer(completion: str) -> tuple[str | None, str]:
    """The text between the tags, stripped, and ``ok``; or None and the format error.

    Errors: ``no_close_think``, ``no_answer_tag``, ``multiple_answers``, ``text_before_answer`` (between ``</think>``
    and ``<answer>``), ``trailing_text``.
    """
    _, closed, rest = completion.partition(CLOSE_THINK)
    if not closed:
        return None, "no_close_think"
    if rest.count(OPEN_ANSWER) > 1 or rest.count(CLOSE_ANSWER) > 1:
        return None, "multiple_answers"
    before, opened, rest = rest.partition(OPEN_ANSWER)
    answer, closed, after = rest.partition(CLOSE_ANSWER)
    if not (opened and closed):
        return None, "no_answer_tag"
    if before.strip():
        return None, "text_before_answer"
    if after.strip():
        return None, "trailing_text"
    return answer.strip(), "ok"


def tagged_verdict(
    attempt: Attempt, answer: str | None, reason: str, *, flexible: bool, metrics: Mapping[str, float] = {}
) -> Verdict:
    """The verdict on an answer in tags: correct if ``reason`` is ``ok``, formatted if there is an ``answer``.

    A truncated completion is wrong, as in understand-r1-zero's train_zero_math.py: its final answer is unknown.
    """
    whole = not attempt.truncated
    return Verdict(
        correct=reason == "ok" and whole,
        formatted=answer is not None and whole,
        reason=reason if whole else "truncated",
        answer=answer,
        flexible=flexible,
        metrics={"hacking/multiple_answers": float(reason == "multiple_answers"), **metrics},
    )


def last_tagged(completion: str) -> str | None:
    """Text of the last answer tag, stripped; None without a tag."""
    if OPEN_ANSWER not in completion:
        return None
    return completion.rpartition(OPEN_ANSWER)[2].partition(CLOSE_ANSWER)[0].strip()


def after_thoughts(completion: str) -> str:
    """Text after the last ``</think>``, or the whole completion without one."""
    return completion.rpartition(CLOSE_THINK)[2]
