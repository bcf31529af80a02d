"""Where the answer stands in a completion in R1 format: ``</think>``, white space or nothing, ``<answer>…</answer>``.

The *strict* reading: an optional ``<think>`` (the prompt may hold it) and thoughts up to the first ``</think>``, then
white space or nothing, then one answer, then nothing. Thoughts are free text: an ``<answer>`` drafted among them is a
thought, neither an answer nor a fault. Behind the first ``</think>`` one answer is all there may be, so a second guess
("</think> <answer>5</answer> no </think> <answer>18</answer>") does not count, however its tags are arranged.

The *tolerant* reading takes the last answer tag there is, wherever it stands, closed or not.

The reference (understand-r1-zero, ``oat_math_grader.answer_tag_reward_fn``) wants exactly one space between the tags
and takes the text after the last ``<answer>``, so that there a second guess counts.
"""

from __future__ import annotations

OPEN_ANSWER, CLOSE_ANSWER = "<answer>", "</answer>"
CLOSE_THINK = "</think>"


def strict_answer(completion: str) -> tuple[str | None, str]:
    """The text between the tags, stripped, and ``ok``; or None and what is wrong with the format.

    That is ``no_close_think``, ``no_answer_tag``, ``multiple_answers``, ``text_before_answer`` (between ``</think>``
    and ``<answer>``) or ``trailing_text``.
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


def last_tagged(completion: str) -> str | None:
    """The text of the last answer tag, stripped; None without one."""
    if OPEN_ANSWER not in completion:
        return None
    return completion.rpartition(OPEN_ANSWER)[2].partition(CLOSE_ANSWER)[0].strip()


def after_thoughts(completion: str) -> str:
    """What follows the last ``</think>``: everything, where there is none."""
    return completion.rpartition(CLOSE_THINK)[2]
