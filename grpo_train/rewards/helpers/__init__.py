"""Helper processes for judging that may hang: one that does not answer in time is killed, the next question goes to a
fresh one.

Nothing in a process can stop a thread that computes 9**9**9**9: signals reach the main thread only, and a pool that
merely stops waiting loses a worker with every hang until all later answers count as wrong. So every question goes to a
process of its own kind, which the kernel ends when it has used up its processor time, and which is killed (SIGKILL)
when it has not answered some time later. Processor time, because a box where training and judging share the cores must
not turn right answers into timeouts.

A helper is a script of this directory that calls :func:`grpo_train.rewards.helpers.serve.serve`: one JSON line in,
one out.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PATIENCE = 3.0
"""An answer may take so many times its processor time before the helper is killed: for a core it may have to wait."""


class HelperTimeout(Exception):
    """The helper did not answer in time and was killed."""


class HelperError(Exception):
    """The helper died, would not start, or failed at the question; the message says why."""


class Helpers:
    """Processes of one script. Safe to use from several threads: each question has a process to itself."""

    def __init__(self, script: str, *arguments: str, seconds: float = 2.0, start_seconds: float = 60.0) -> None:
        """Nothing is started yet.

        Args:
            script: a file of this directory.
            seconds: processor time that an answer may take.
            start_seconds: the deadline of a start, imports included.
        """
        self._command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
        self._seconds, self._start_seconds = seconds, start_seconds
        self._idle: list[_Helper] = []
        self._lock = threading.Lock()
        self._places = threading.BoundedSemaphore(max(2, len(os.sched_getaffinity(0))))
        atexit.register(self.close)

    def ask(self, question: Any) -> Any:
        """The answer to ``question``; both are plain JSON.

        Raises HelperTimeout, and HelperError for any other failure. The next question is unaffected by either.
        """
        with self._places:
            helper = self._take()
            try:
                answer = helper.ask(question, self._seconds)
            except BaseException:  # KeyboardInterrupt leaves an answer in the pipe, too
                helper.kill()
                raise
            with self._lock:
                self._idle.append(helper)
        if "error" in answer:
            raise HelperError(answer["error"])
        return answer["answer"]

    def close(self) -> None:
        """End the helpers that wait."""
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
        return _Helper(self._command, self._start_seconds, self._seconds)


class _Helper:
    """One process, started and ready."""

    def __init__(self, command: list[str], start_seconds: float, seconds: float) -> None:
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HELPER_SECONDS": str(seconds)}
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment
            )
        except OSError as error:
            raise HelperError(f"cannot start {command[1]}: {error}") from error
        try:
            ready = self._read(time.monotonic() + start_seconds)
        except HelperTimeout as error:
            self.kill()
            raise HelperError(f"{command[1]} was not ready after {start_seconds:g} s") from error
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
            raise HelperError(f"the helper is gone: {error}") from error
        return self._read(time.monotonic() + PATIENCE * seconds)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            try:
                stream.close()
            except OSError:  # what was still to be written to it
                pass

    def _read(self, deadline: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()  # select.select cannot watch descriptors above 1023
        poll.register(pipe, select.POLLIN)
        received = b""
        while not received.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise HelperTimeout
            piece = os.read(pipe, 65536)
            if not piece:
                if self._process.wait() == -signal.SIGPROF:
                    raise HelperTimeout
                raise HelperError(f"the helper ended by itself, exit status {self._process.returncode}")
            received += piece
        answer: dict[str, Any] = json.loads(received)
        return answer
