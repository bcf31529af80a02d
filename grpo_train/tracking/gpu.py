"""GPU samples in ``gpu.jsonl``: of a run by its supervisor, of an evaluation started by hand by itself. Torch-free.

On a machine without a GPU a run's file holds one line that says so; one whose driver does not answer, a line with the
reason, and samples once it does.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.clock import CLOCK, Clock
from grpo_train.run_dir.errors import message_of
from grpo_train.run_dir.files import JsonlWriter, last_jsonl, to_float
from grpo_train.run_dir.gpus import GpuReadError, query_gpus


@contextmanager
def sample_gpus(run: RunDir, interval: float, clock: Clock = CLOCK) -> Iterator[None]:
    """Append a line per GPU every ``interval`` seconds, on a thread, while the context is open."""

    def step() -> int:
        return int(to_float((last_jsonl(run.logs / "train_log.jsonl") or {}).get("step")) or 0)

    with _sampling(run.logs / "gpu.jsonl", interval, step, clock, note=True):
        yield


@contextmanager
def sample_evaluation(folder: Path, interval: float) -> Iterator[None]:
    """The same for an evaluation, in its own folder; without a GPU nothing is written."""
    with _sampling(folder / "gpu.jsonl", interval, lambda: 0, CLOCK, note=False):
        yield


@contextmanager
def _sampling(file: Path, interval: float, step: Callable[[], int], clock: Clock, *, note: bool) -> Iterator[None]:
    done = threading.Event()
    arguments = (file, interval, step, clock, note, done)
    thread = threading.Thread(target=_sample, args=arguments, name="gpu", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=15)


def _sample(
    file: Path, interval: float, step: Callable[[], int], clock: Clock, note: bool, done: threading.Event
) -> None:
    problem, has_none = "", False
    try:
        if has_none := not query_gpus(processes=False):
            problem = "no GPU on this box"
    except GpuReadError as error:
        problem = str(error)
    if has_none and not note:
        return
    try:
        log = JsonlWriter(file)
    except OSError as error:
        print(f"warning: no samples of the GPUs are kept: {message_of(error)}", file=sys.stderr, flush=True)
        return
    with closing(log) as writer:
        if problem:
            writer.write({"step": 0, "note": problem})
        while not has_none and not clock.wait(done, interval):
            try:
                now = step()
                writer.write(*({"step": now, **gpu.sample()} for gpu in query_gpus(processes=False)))
            except (OSError, GpuReadError):
                continue  # a full disk or a driver that fails must not end the run
