"""GPU samples in ``logs/gpu.jsonl``, written by the supervisor. Torch-free.

On a machine without a GPU the file holds one line that says so.
"""

from __future__ import annotations

import threading

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import JsonlWriter, last_jsonl
from grpo_train.run_dir.gpus import read_gpus


class GpuSampler:
    """A thread that appends a line per GPU every ``interval`` seconds."""

    def __init__(self, run: RunDir, interval: float) -> None:
        self._run, self._interval = run, interval
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._work, name="gpu", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._done.set()
        self._thread.join(timeout=15)

    def _work(self) -> None:
        writer = JsonlWriter(self._run.logs / "gpu.jsonl")
        if not read_gpus(processes=False):
            writer.write({"step": 0, "note": "no GPU on this box"})
            self._done.set()
        while not self._done.wait(self._interval):
            try:
                step = (last_jsonl(self._run.logs / "train_log.jsonl") or {}).get("step", 0)
                writer.write(*({"step": step, **gpu.sample()} for gpu in read_gpus(processes=False)))
            except OSError:
                continue  # a full disk must not end the run
        writer.close()
