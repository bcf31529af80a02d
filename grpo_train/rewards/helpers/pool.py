"""Helper processes for judging that may hang: one for each question, or one that answers many.

A process cannot stop its own thread that computes 9**9**9**9: signals reach the main thread only, a regular expression
that backtracks for ever does not even let another thread run, and a pool that just stops waiting loses a worker with
every hang. So each question goes to a helper process, which is killed (SIGKILL) if it has not answered in time.

In a pool, the kernel ends a helper when its CPU time is used up, long before that: training and judging share the
cores, and a busy box must not turn correct answers into timeouts. Its messages are JSON, since what a model wrote is
judged there; those of a user's own functions are pickles.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
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
    """The helper did not answer in time."""


class HelperError(Exception):
    """The helper did not start or failed on the question; the message gives the reason."""


class HelperEnded(HelperError):
    """The helper has ended instead of answering."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the helper exited with status {status}")
        self.status = status
        """Exit status or, negative, the signal that ended it."""


class Helper:
    """One process that is sent bytes and answers with bytes."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        output: int | None = None,
        clock: Clock = CLOCK,
    ) -> None:
        """Start ``python COMMAND… FD``, FD being its end of a :class:`~multiprocessing.connection.Connection`.

        ``output``: as ``stdout`` and ``stderr`` of :class:`subprocess.Popen`. Raises HelperError.
        """
        self._clock = clock
        self._connection, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, *command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **environment},
            )
        except OSError as error:  # no memory for another process
            raise HelperError(f"cannot start {sys.executable}: {error.strerror}") from error
        finally:
            theirs.close()
        self.end = weakref.finalize(self, _end, self._process, self._connection)
        """Kill the process; also called when this object or the interpreter ends."""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, message: bytes) -> None:
        """Raises HelperEnded."""
        try:
            self._connection.send_bytes(message)
        except OSError:  # killed since the last answer
            raise self._ended() from None

    def receive(self, seconds: float) -> bytes:
        """The next message. Raises HelperTimeout, HelperEnded."""
        if not self._clock.select([self._connection.fileno()], seconds):
            raise HelperTimeout
        try:
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._ended() from None

    def _ended(self) -> HelperEnded:
        self._clock.wait_exit(self._process, 10)
        return HelperEnded(self._process.poll() or 0)


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    process.kill()
    process.wait()
    connection.close()


class Helpers:
    """Processes of one script. Thread-safe: each question has a process to itself.

    A script defines ``prepare()``, which returns the function that answers; ``serve.py`` runs it.
    """

    def __init__(self, script: str, *, seconds: float = 2.0, clock: Clock = CLOCK) -> None:
        """Configure the pool; processes start on demand.

        Args:
            script: path of the helper script.
            seconds: CPU time limit of an answer.
        """
        self._script, self._seconds, self._clock = script, seconds, clock
        self._idle: list[Helper] = []
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(max(2, len(os.sched_getaffinity(0))))

    def ask(self, question: Any) -> Any:
        """Answer ``question``; both are plain JSON.

        Raises HelperTimeout, and HelperError for any other failure. Neither affects the next question.
        """
        with self._slots:
            helper = self._take()
            try:
                helper.send(json.dumps(question).encode())
                answer = self._answer(helper, PATIENCE * self._seconds)
            except BaseException:  # also KeyboardInterrupt, which leaves an answer in the pipe
                helper.end()
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
            helper.end()

    def _take(self) -> Helper:
        with self._lock:
            while self._idle:
                helper = self._idle.pop()
                if helper.is_alive:
                    return helper
        environment = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "HELPER_SECONDS": str(self._seconds)}
        helper = Helper([SERVE, self._script], environment, output=subprocess.DEVNULL, clock=self._clock)
        try:
            ready = self._answer(helper, START_SECONDS)
        except HelperTimeout as error:  # a library whose import takes minutes
            helper.end()
            raise HelperError(f"{self._script} was not ready after {START_SECONDS:g} s") from error
        if "error" in ready:
            helper.end()
            raise HelperError(ready["error"])
        return helper

    def _answer(self, helper: Helper, seconds: float) -> dict[str, Any]:
        try:
            answer: dict[str, Any] = json.loads(helper.receive(seconds))
        except HelperEnded as error:
            if error.status == -signal.SIGPROF:  # its CPU time is used up
                raise HelperTimeout from None
            raise
        return answer
