"""Evaluations in the test's own process: the parent as it is, its children as function calls."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Config
from grpo_train.evaluation import runner
from grpo_train.evaluation.plan import EvalPlan, EvalRequest, problems_of, task_of
from grpo_train.evaluation.results import partial
from grpo_train.evaluation.workers import single_turn
from grpo_train.evaluation.workers import worker as child
from grpo_train.evaluation.workers.pool import Child, Event
from grpo_train.run_dir import RunDir
from tests.support.engine import run_of

RESULTS = ("completions.jsonl", "metrics.csv", "summary.json")
"""What an interrupted evaluation and one that was not write alike."""


SAMPLED: dict[str, Any] = {"num_problems": 12, "num_samples": 2, "temperature": 1.0, "batch_size": 2}
"""24 samples in 3 chunks of 8."""


class Killed(BaseException):
    """What a test raises where a process would have been killed."""


class ChildrenHere:
    """Stands in for :class:`grpo_train.evaluation.workers.pool.Children`: one after the other, here."""

    def __init__(self, plan: EvalPlan, run_id: str, nproc: int, timeout: float) -> None:
        self._plan, self._nproc = plan, nproc
        self.are_there = True
        self._progress: dict[str, Any] = {}

    def events(self, wait_s: float = 0.2) -> Iterator[tuple[Child, Event]]:
        self.are_there = False
        config = Config.model_validate(self._plan.config)
        task = task_of(config)
        problems = problems_of(self._plan, config, task)
        said: list[Event] = []
        for number in range(self._nproc):
            here: Any = Child(number, None, 0, 0.0, "", set())  # type: ignore[arg-type]
            for target in self._plan.targets:
                yield here, {"event": "started", "name": target.name}

                def report(event: str, **fields: Any) -> None:
                    said.append({"event": event, **fields})

                child.evaluate(target, self._plan, config, task, problems, report, number, self._nproc)
                yield here, {"event": "done", "name": target.name}

    def progress(self, name: str) -> dict[str, Any]:
        return self._progress

    def end(self) -> None:
        pass


@contextmanager
def in_this_process() -> Iterator[None]:
    """Evaluations asked of :mod:`grpo_train.evaluation.runner` stay in this process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "become_subreaper", lambda: None)
        patch.setattr(runner, "Children", ChildrenHere)
        try:
            yield
        finally:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)


def evaluate_here(root: Path, run: str, **request: Any) -> int:
    """``grpo-train eval`` without a process of its own; returns its exit code."""
    with in_this_process():
        return runner.run_evaluation(root, EvalRequest(run, **request))


def files_of(step: Path) -> dict[str, bytes]:
    """The bytes of a step's results."""
    return {name: (step / name).read_bytes() for name in RESULTS}


def copy_of(run: RunDir, folder: Path) -> RunDir:
    shutil.copytree(run.root, folder / "root", symlinks=True)
    return run_of(folder / "root", run.name)


def step_of(run: RunDir, step: int = 2) -> Path:
    return run.root / "eval_runs" / "trained_addition" / f"step_{step}_addition"


def partial_of(run: RunDir, step: int = 2) -> partial.Partial:
    return partial.Partial.beside(step_of(run, step))


def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every item that is generated from now on."""
    items: list[int] = []
    original = single_turn.SingleTurn.answer

    def answer(self: Any, chosen: Any) -> Any:
        items.extend(chosen)
        return original(self, chosen)

    monkeypatch.setattr(single_turn.SingleTurn, "answer", answer)
    return items


def evaluate_until(run: RunDir, writes: int, torn: bool) -> bool:
    """Evaluate step 2 and be killed at write ``writes`` (half of it on disk if ``torn``); True where it came so far."""
    left = writes
    original = partial._append

    def append(descriptor: int, rows: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            if torn:
                lines = "".join(partial.to_json(row) + "\n" for row in rows).encode()
                os.write(descriptor, lines[: len(lines) // 2])
            raise Killed
        original(descriptor, rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(partial, "_append", append)
        try:
            evaluate_here(run.root, "trained", steps="2", **SAMPLED)
        except Killed:
            return True
    return False
