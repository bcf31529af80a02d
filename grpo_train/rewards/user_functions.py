"""User-defined reward functions, run in a process that is ended when one hangs."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_train.rewards.helpers import Helper, HelperEnded, HelperError, HelperTimeout
from grpo_train.rewards.helpers.messages import Call, CallFailure, CallRequest, Setup
from grpo_train.rewards.signatures import Kind
from grpo_train.rewards.types import TaskError
from grpo_train.run_dir.files import atomic_write, utc_now
from grpo_train.run_dir.processes import PARENT_VARIABLE

CHILD = "grpo_train.rewards.helpers.functions"
START_S = 600.0
"""Time limit of a start: a module may load a model when it is imported."""


class UserFunctions:
    """The user-defined functions of a run, in one process. Thread-safe: calls from several threads wait in line."""

    def __init__(
        self, names: Sequence[str], modules: Sequence[str], *, timeout_s: float, failure_file: Path | None
    ) -> None:
        """Start the process and load the functions. Raises TaskError for one that cannot be loaded.

        Args:
            names: as in ``task.rewards``.
            modules: further user-defined functions of the ``task`` section; problems may hold their classes.
            timeout_s: limit of a call; of ``async`` calls, which run together, the longest time without a result.
            failure_file: gets the completions of a call that fails; None = they are not saved.
        """
        self._setup = Setup(list(sys.path), list(names), list(modules))
        self._timeout_s, self._failure_file = timeout_s, failure_file
        self._lock = threading.Lock()
        self._process: _Process | None = None
        self.kinds: list[Kind] = self._started().kinds

    def close(self) -> None:
        """End the process; the next call starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def values(self, function: int, calls: Sequence[Call]) -> list[list[float | None]]:
        """Values of function number ``function``, one list for each call.

        Raises TaskError if it raises, hangs, ends its process, or returns anything but finite numbers and None.
        """
        found: dict[int, list[float | None]] = {}
        failed: int | None = None
        with self._lock:
            try:
                process = self._started()
                process.send(CallRequest(function, list(calls)))
                while len(found) < len(calls):
                    failed = next(index for index in range(len(calls)) if index not in found)
                    failed, answer = process.receive(self._timeout_s, "task.reward_timeout")
                    if isinstance(answer, CallFailure):
                        raise _CallError(answer)
                    found[failed] = answer
            except _CallError as error:
                self.close()  # more answers may be on their way
                name = self._setup.functions[function].rpartition(":")[2]
                failure = error.failure
                place = process.places[function]
                message = failure.message if error.is_complete else f"task.rewards: '{name}' {failure.message}{place}"
                saved = "" if failed is None else self._save(name, message, failure.details, calls[failed])
                raise TaskError(message + saved, code=failure.code) from None
            except BaseException:  # KeyboardInterrupt leaves an answer in the pipe
                self.close()
                raise
        return [found[index] for index in range(len(calls))]

    def _started(self) -> _Process:
        if self._process is None:
            self._process = _Process(self._setup)
        return self._process

    def _save(self, name: str, message: str, details: str, call: Call) -> str:
        """Save the completions of a call; returns the end of the error message."""
        if self._failure_file is None:
            return ""
        attempts, verdicts = call
        record = {
            "time": utc_now(),
            "function": name,
            "error": message,
            "traceback": details,
            "prompt": attempts[0].problem.prompt,
            "columns": attempts[0].problem.columns,
            "attempts": [
                {
                    "key": attempt.key,
                    "completion": attempt.completion,
                    "length": attempt.length,
                    "truncated": attempt.truncated,
                    "correct": verdict.correct,
                    "reason": verdict.reason,
                }
                for attempt, verdict in zip(attempts, verdicts, strict=True)
            ],
        }
        text = json.dumps(record, indent=2, ensure_ascii=False, default=repr) + "\n"
        try:
            atomic_write(self._failure_file, text)
        except OSError as error:
            return f"; its completions cannot be saved: {error.strerror}"
        return f"; its completions are in {self._failure_file}"


class _CallError(Exception):
    """A call without a value; the failure is an error message that is complete, or what the function did."""

    def __init__(self, failure: CallFailure, *, is_complete: bool = True) -> None:
        super().__init__(failure.message)
        self.failure, self.is_complete = failure, is_complete


class _Process:
    """One process, started, with its functions loaded."""

    def __init__(self, setup: Setup) -> None:
        """Raises TaskError if a function cannot be loaded."""
        try:
            self._helper = Helper(["-m", CHILD], {PARENT_VARIABLE: str(os.getpid())})
        except HelperError as error:  # no memory for another process
            raise TaskError(f"task.rewards: {error}") from error
        loaded = self._load(setup)
        self.kinds: list[Kind] = [kind for kind, _ in loaded]
        self.places: list[str] = [place for _, place in loaded]
        """`` (file:line)`` of each function, for errors of calls that do not return."""

    def _load(self, setup: Setup) -> Any:
        try:
            self.send(setup)
            loaded = self.receive(START_S, "loading the functions")
        except _CallError as error:  # a file that hangs or ends the process when it is imported
            self.end()
            raise TaskError(f"task.rewards: {', '.join(setup.functions)}: {error.failure.message}") from None
        if isinstance(loaded, CallFailure):
            self.end()
            raise TaskError(loaded.message, code=loaded.code)
        return loaded

    def end(self) -> None:
        self._helper.end()

    def send(self, message: Setup | CallRequest) -> None:
        """Raises _CallError if the message cannot be pickled or the process has ended."""
        try:
            self._helper.send(pickle.dumps(message))
        except HelperEnded as error:  # killed since the last call
            raise _ended(error.status) from None
        except Exception as error:  # pickle raises many types
            what = f"cannot be called: the problem's data cannot be pickled ({type(error).__name__}: {error})"
            raise _CallError(CallFailure(what, "bad_task"), is_complete=False) from error

    def receive(self, timeout_s: float, limit: str) -> Any:
        """The next message. Raises _CallError after ``timeout_s`` seconds, and if the process has ended."""
        try:
            return pickle.loads(self._helper.receive(timeout_s))
        except HelperTimeout:
            what = f"did not return within {timeout_s:g} s ({limit})"
            raise _CallError(CallFailure(what, "reward_timeout"), is_complete=False) from None
        except HelperEnded as error:
            raise _ended(error.status) from None


def _ended(status: int) -> _CallError:
    how = f"was killed by signal {-status} (out of memory?)" if status < 0 else f"ended with status {status}"
    return _CallError(CallFailure(f"ended its process, which {how}", "reward_raised"), is_complete=False)
