"""Pool of helper processes for judging that may hang.

A process cannot stop its own thread that computes 9**9**9**9: signals reach the main thread only, and a pool that just
stops waiting loses a worker with every hang. So each question goes to a helper process, which the kernel ends when its
CPU time is used up, and which is killed (SIGKILL) if it has not answered some time later. The limit is CPU time
because training and judging share the cores, and a busy box must not turn correct answers into timeouts.

A helper script defines ``prepare()``, which returns the function that answers; :mod:`grpo_train.rewards.helpers.serve`
runs it, with one JSON line per question and answer.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import CLOCK, Clock

SERVE = str(Path(__file__).with_name("serve.py"))
START_SECONDS = 180.0
"""Time limit of a start, imports included, which a disk or network under load delays by minutes."""
PATIENCE = 10.0
"""Wall-clock limit of an answer as a multiple of the CPU limit: a helper may have to wait for a core.

Only a process that is stopped or swapped out reaches it: one that computes reaches the CPU limit first.
"""

GRADER_FAILURES = ("grader_timeout", "grader_error")
"""Reasons of an answer that could not be judged; they are counted separately from wrong answers."""


class HelperTimeout(Exception):
    """The helper did not answer in time and was killed."""


class HelperError(Exception):
    """The helper died, did not start or failed on the question; the message gives the reason."""


class Helpers:
    """Processes of one script. Thread-safe: each question has a process to itself."""

    def __init__(self, script: str, *, seconds: float = 2.0, clock: Clock = CLOCK) -> None:
        """Configure the pool; processes start on demand.

        Args:
            script: path of the helper script.
            seconds: CPU time limit of an answer.
        """
        self._script, self._seconds, self._clock = script, seconds, clock
        self._idle: list[_Helper] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max(2, len(os.sched_getaffinity(0))))
        atexit.register(self.close)

    def ask(self, question: Any) -> Any:
        """Answer ``question``; both are plain JSON.

        Raises HelperTimeout, and HelperError for any other failure. Neither affects the next question.
        """
        with self._slots:
            helper = self._take()
            try:
                answer = helper.ask(question, self._seconds)
            except BaseException:  # also KeyboardInterrupt, which leaves an answer in the pipe
                helper.kill()
                raise
            with self._lock:
                self._idle.append(helper)
        if "error" in answer:
            raise HelperError(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        """Kill idle helpers."""
        with self._lock:
            idle, self._idle = self._idle, []
        for helper in idle:
            helper.kill()

    def _take(self) -> _Helper:
        with self._lock:
            while self._idle:
                helper = self._idle.pop()
                if helper.is_alive:
                    return helper
        return _Helper(self._script, self._seconds, self._clock)


class _Helper:
    """One process, started and ready."""

    def __init__(self, script: str, seconds: float, clock: Clock) -> None:
        self._clock = clock
        command = [sys.executable, SERVE, script]
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HELPER_SECONDS": str(seconds)}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            raise HelperError(f"cannot start {script}: {error}") from error
        try:
            ready = self._read(self._clock.monotonic() + START_SECONDS)
        except HelperTimeout as error:
            self.kill()
            raise HelperError(f"{script} was not ready after {START_SECONDS:g} s") from error
        if "error" in ready:
            self.kill()
            raise HelperError(ready["error"])

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, question: Any, seconds: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise HelperError(f"the helper died: {error}") from error
        return self._read(self._clock.monotonic() + PATIENCE * seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:  # buffered data could not be flushed
                pass

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        received = b""
        while not received.endswith(b"\n"):
            left = deadline - self._clock.monotonic()
            if left <= 0 or not self._clock.select([pipe], left):
                raise HelperTimeout
            chunk = os.read(pipe, 65536)
            if not chunk:
                if self._process.wait() == -signal.SIGPROF:
                    raise HelperTimeout
                raise HelperError(f"the helper exited with status {self._process.returncode}")
            received += chunk
        answer: dict[str, Any] = json.loads(received)
        return answer
