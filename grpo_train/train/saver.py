"""Saving beside training: a checkpoint is copied to the host's memory, and written while training goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from grpo_train.policy.loading import Policy
from grpo_train.run_dir import RunDir
from grpo_train.train.checkpoint import CheckpointContent, write_checkpoint
from grpo_train.train.host_memory import HostMemory


class CheckpointSaver:
    """Writes one checkpoint at a time, on a thread that the process waits for at its end. Rank 0 has one."""

    def __init__(self, run: RunDir, policy: Policy) -> None:
        self._run, self._policy = run, policy
        self._memory = HostMemory()
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, snapshot: CheckpointContent, then: Callable[[float], None]) -> None:
        """Wait for the checkpoint before, copy a snapshot and start to write it.

        What has no room in the host's memory, or a layout that only transformers writes, is written before this
        returns.

        Args:
            then: called once the checkpoint is complete, with the seconds since this call, on the thread that wrote it.

        Raises CheckpointError, and what ``then`` raises, of this or the previous checkpoint.
        """
        self.wait()
        start = time.perf_counter()

        def write() -> None:
            write_checkpoint(self._run, snapshot, self._policy)
            then(time.perf_counter() - start)

        tensors = (snapshot.weights, snapshot.state)
        if snapshot.weights is None or not self._memory.has_room(tensors):
            write()
            return
        snapshot.weights, snapshot.state = self._memory.copy(tensors)
        _ = self._policy.description  # made here, on first use: it reads the model
        self._thread = threading.Thread(target=self._run_thread, args=(write,), name="save")
        self._thread.start()

    def check(self) -> None:
        """Raise what a checkpoint that was being written failed with."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def wait(self) -> None:
        """Wait until no checkpoint is being written. Raises as :meth:`save`."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.check()

    def _run_thread(self, write: Callable[[], None]) -> None:
        try:
            write()
        except BaseException as error:
            self._failure = error
