"""Evaluations in the test process: the real parent, with worker processes replaced by function calls."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from grpo_train.config.schema import Config
from grpo_train.evaluation import runner
from grpo_train.evaluation.plan import EvalPlan, problems_of, task_of
from grpo_train.evaluation.request import EvalRequest
from grpo_train.evaluation.results import partial
from grpo_train.evaluation.workers import single_turn, worker
from grpo_train.evaluation.workers.pool import Event, Worker
from grpo_train.run_dir import RunDir
from grpo_train.run_dir.errors import UserError
from tests.support.engine import at_start, command_here, run_of

RESULTS = ("completions.jsonl", "metrics.csv", "summary.json")
"""Files that an interrupted and an uninterrupted evaluation write identically."""
SAMPLED: dict[str, Any] = {"num_problems": 12, "num_samples": 2, "temperature": 1.0, "batch_size": 2}
"""24 samples in 3 chunks of 8."""


class Killed(BaseException):
    """Raised where a process would be killed."""


class InProcessPool:
    """Replacement for :class:`grpo_train.evaluation.workers.pool.WorkerPool`: one rank after the other, in process."""

    def __init__(self, plan: EvalPlan, run_id: str, nproc: int, timeout: float) -> None:
        self._plan, self._nproc = plan, nproc
        self.is_alive = True
        self._progress: dict[str, int] = {}

    def events(self, wait_s: float = 0.2) -> Iterator[tuple[Worker, Event]]:
        self.is_alive = False
        config = Config.model_validate(self._plan.config)
        task = task_of(config)
        problems = problems_of(self._plan, config, task)
        for rank in range(self._nproc):
            here: Any = Worker(rank, None, 0, 0.0, "", set())  # type: ignore[arg-type]
            for target in self._plan.targets:
                reported: list[Event] = []
                yield here, {"event": "started", "name": target.name}

                def report(event: str, **fields: Any) -> None:
                    reported.append({"event": event, **fields})  # noqa: B023

                ended: Event = {"event": "done", "name": target.name}
                try:
                    worker.evaluate_target(target, self._plan, config, task, problems, report, rank, self._nproc)
                except UserError as error:
                    ended = {"event": "failed", "name": target.name, "error": str(error), "code": error.code}
                for event in reported:
                    self._progress = {"done": event["done"], "total": event["total"]}
                    yield here, event
                yield here, ended

    def progress(self, name: str) -> dict[str, Any]:
        return {"name": name, **self._progress}

    def end(self) -> None:
        pass


@contextmanager
def in_this_process() -> Iterator[None]:
    """Keep evaluations of :mod:`grpo_train.evaluation.runner` in this process."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "become_subreaper", lambda: None)
        patch.setattr(runner, "WorkerPool", InProcessPool)
        try:
            yield
        finally:
            for number, handler in zip(numbers, handlers, strict=True):
                signal.signal(number, handler)


def evaluate_here(root: Path, run: str, **request: Any) -> int:
    """``grpo-train eval`` in this process; returns its exit code."""
    return outcome_of(root, run, **request).exit_code


def outcome_of(root: Path, run: str | None, **request: Any) -> runner.EvaluationOutcome:
    """``grpo-train eval`` in this process; returns its outcome."""
    with in_this_process():
        (outcome,) = runner.run_evaluations(root, [EvalRequest(run, **request)])
    return outcome


def eval_command(*arguments: object, root: Path | None) -> subprocess.CompletedProcess[str]:
    """``grpo-train eval ARGUMENTS`` in this process, its workers too."""
    with in_this_process():
        return command_here("eval", *arguments, root=root)


def files_of(step: Path) -> dict[str, bytes]:
    """Content of a step's result files."""
    return {name: (step / name).read_bytes() for name in RESULTS}


def copy_of(run: RunDir, folder: Path) -> RunDir:
    shutil.copytree(run.root, folder / "root", symlinks=True)
    return run_of(folder / "root", run.name)


def step_of(run: RunDir, step: int = 2) -> Path:
    return run.root / "eval_runs" / "trained_addition" / f"step_{step}_addition"


def partial_of(run: RunDir, step: int = 2) -> partial.Partial:
    return partial.Partial.beside(step_of(run, step))


def record_generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A list that receives every item generated from now on."""
    items: list[int] = []
    original = single_turn.SingleTurnSource.generate

    def generate(self: Any, chosen: Any) -> Any:
        items.extend(chosen)
        return original(self, chosen)

    monkeypatch.setattr(single_turn.SingleTurnSource, "generate", generate)
    return items


def evaluate_until(run: RunDir, writes: int, torn: bool) -> bool:
    """Evaluate step 2 with a kill at write ``writes``, half of it on disk if ``torn``; False if it finished before."""
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


STOPS = """
import os, signal, sys

def stop_after(writes):
    from grpo_train.evaluation.results import partial
    append, left = partial._append, [writes]

    def stops(descriptor, rows):
        append(descriptor, rows)
        left[0] -= 1
        if not left[0]:
            {act}
            signal.pause()

    partial._append = stops

if any("evaluation.workers" in word for word in sys.orig_argv):
    stop_after({writes})
"""


def stopped_after(writes: int, folder: Path, act: str = "pass") -> dict[str, str]:
    """Environment of a command whose workers act after some writes to disk and then wait for ever."""
    return at_start(folder, STOPS.format(writes=writes, act=act))
