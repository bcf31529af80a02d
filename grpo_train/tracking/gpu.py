"""GPU samples in ``logs/gpu.jsonl``, written by the supervisor. Torch-free.

On a machine without a GPU the file holds one line that says so.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import JsonlWriter, last_jsonl
from grpo_train.run_dir.gpus import read_gpus


@contextmanager
def sample_gpus(run: RunDir, interval: float) -> Iterator[None]:
    """Append a line per GPU every ``interval`` seconds, on a thread, while the context is open."""
    done = threading.Event()
    thread = threading.Thread(target=_sample, args=(run, interval, done), name="gpu", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=15)


def _sample(run: RunDir, interval: float, done: threading.Event) -> None:
    with closing(JsonlWriter(run.logs / "gpu.jsonl")) as writer:
        if not read_gpus(processes=False):
            writer.write({"step": 0, "note": "no GPU on this box"})
            return
        while not done.wait(interval):
            try:
                step = (last_jsonl(run.logs / "train_log.jsonl") or {}).get("step", 0)
                writer.write(*({"step": step, **gpu.sample()} for gpu in read_gpus(processes=False)))
            except OSError:
                continue  # a full disk must not end the run
