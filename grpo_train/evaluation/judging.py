"""Verdicts as rows, computed at once or on threads while the next completions are generated. Torch-free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any

from grpo_train.evaluation.results.stored import GRADER_ERROR
from grpo_train.tasks import Attempt, Problem, Task

_NO_VERDICT: dict[str, Any] = {
    "item": -1, "answer": None, "correct": False, "flexible": None, "formatted": False, "reason": "", "score": None,
    "metrics": {}, "facts": {},
}  # fmt: skip


class Judges:
    """Judges stored completions by item: on threads for slow tasks, else at once. A context manager that ends the
    threads."""

    def __init__(self, task: Task, threads: int, problems: Sequence[Problem], samples: int, label: str) -> None:
        """``samples`` per problem; ``label`` is the label of the evaluation."""
        self._task, self._problems, self._samples, self._label = task, problems, samples, label
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="judge") if task.slow else None
        self._pending: dict[int, Future[dict[str, Any]]] = {}

    def submit(self, item: int, completion: Mapping[str, Any]) -> None:
        """Judge the completion of an item, now or later."""
        position, sample = divmod(item, self._samples)
        problem = self._problems[position]
        attempt = Attempt(
            problem=problem,
            completion=completion["completion"],
            truncated=completion["truncated"],
            length=completion["length"],
            thoughts_closed=bool(completion.get("thoughts_closed")),
            key=f"{self._label}/{problem.index}/{sample}",
        )
        if self._pool is not None:
            self._pending[item] = self._pool.submit(judge_attempt, self._task, item, attempt)
            return
        done: Future[dict[str, Any]] = Future()
        done.set_result(judge_attempt(self._task, item, attempt))
        self._pending[item] = done

    def busy(self, wait_s: float = 1.0) -> bool:
        """Wait for the next verdict, at most ``wait_s``; whether any is still missing after that."""
        missing = [future for future in self._pending.values() if not future.done()]
        return bool(wait(missing, wait_s, FIRST_COMPLETED).not_done) if missing else False

    def done(self, *, wait: bool = False) -> list[dict[str, Any]]:
        """Verdicts finished since the last call; all remaining ones with ``wait``."""
        ready = [item for item, future in self._pending.items() if wait or future.done()]
        return [self._pending.pop(item).result() for item in ready]

    def __enter__(self) -> Judges:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


def judge_attempt(task: Task, item: int, attempt: Attempt) -> dict[str, Any]:
    """Verdict of an attempt as a row; a grader that raises gives :data:`GRADER_ERROR`, not a wrong answer."""
    try:
        verdict = task.judge(attempt)
    except Exception as error:  # one attempt must not cost the others, whatever a grader or its sandbox raises
        facts = {"error": f"{type(error).__name__}: {error}"}
        return {**_NO_VERDICT, "item": item, "reason": GRADER_ERROR, "facts": facts}
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


def settled(rows: Iterable[Mapping[str, Any]]) -> set[int]:
    """Items with a final verdict; those whose grader failed are judged again."""
    return {row["item"] for row in rows if row["reason"] != GRADER_ERROR}
