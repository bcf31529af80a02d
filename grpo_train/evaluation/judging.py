"""Verdicts as rows, made at once or on threads while the next completions are generated. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from grpo_train.tasks import Attempt, Problem, Task

GRADER_ERROR = "grader_error"
"""The reason of an attempt whose judging itself failed: counted apart, and judged again by the next evaluation."""


class Judges:
    """Judges attempts by item; ``with`` ends the threads."""

    def __init__(self, task: Task, threads: int) -> None:
        self._task = task
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="judge") if task.slow else None
        self._waiting: dict[int, Future[dict[str, Any]]] = {}

    def submit(self, item: int, attempt: Attempt) -> None:
        """Judge it, now or later."""
        if self._pool is not None:
            self._waiting[item] = self._pool.submit(judge, self._task, item, attempt)
            return
        done: Future[dict[str, Any]] = Future()
        done.set_result(judge(self._task, item, attempt))
        self._waiting[item] = done

    def done(self, *, wait: bool = False) -> list[dict[str, Any]]:
        """The verdicts that are there since the last call; with ``wait`` all of them."""
        ready = [item for item, future in self._waiting.items() if wait or future.done()]
        return [self._waiting.pop(item).result() for item in ready]

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def attempt_of(problem: Problem, sample: int, label: str, completion: dict[str, Any]) -> Attempt:
    """A stored completion as a task judges it."""
    return Attempt(
        problem=problem,
        completion=completion["completion"],
        truncated=completion["truncated"],
        length=completion["length"],
        key=f"{label}/{problem.index}/{sample}",
    )


def judge(task: Task, item: int, attempt: Attempt) -> dict[str, Any]:
    """The verdict as a row. A grader that raises is an error of its own kind, not a wrong answer."""
    try:
        verdict = task.judge(attempt)
    except Exception as error:  # whatever a grader or its sandbox raises: one attempt must not cost the others
        return {
            **_NOTHING,
            "item": item,
            "reason": GRADER_ERROR,
            "facts": {"error": f"{type(error).__name__}: {error}"},
        }
    return {
        "item": item,
        "answer": verdict.answer,
        "correct": bool(verdict.correct),
        "flexible": verdict.flexible,
        "formatted": bool(verdict.formatted),
        "reason": verdict.reason,
        "score": verdict.score,
        "metrics": dict(verdict.metrics),
        "facts": dict(verdict.facts),
    }


def settled(rows: Iterable[dict[str, Any]]) -> set[int]:
    """The items whose verdict stands: those without one are to be judged, those whose grader failed once more."""
    return {row["item"] for row in rows if row["reason"] != GRADER_ERROR}


_NOTHING: dict[str, Any] = {
    "item": -1, "answer": None, "correct": False, "flexible": None, "formatted": False, "reason": "", "score": None,
    "metrics": {}, "facts": {},
}  # fmt: skip
