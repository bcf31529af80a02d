"""Main program of the process that runs user-defined reward functions: ``python -m … FD``, FD a connection's end.

They run in the main thread, so that a function may use signals, as math-verify does for its time limits. All ``async``
calls of a request run together on one event loop, which lasts as long as the process.
"""

from __future__ import annotations

import asyncio
import math
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from grpo_train.rewards.helpers.messages import Call, CallFailure, CallRequest, Setup
from grpo_train.rewards.signatures import Kind, is_async, kind_of, place_of, split_prefix, trl_arguments
from grpo_train.rewards.types import LARGEST_REWARD, TaskError
from grpo_train.rewards.user_code import load_function
from grpo_train.run_dir.processes import die_with_parent
from grpo_train.run_dir.signs import show_stacks_on_request


@dataclass(frozen=True)
class _UserFunction:
    name: str
    kind: Kind
    call: Callable[..., Any]

    def start(self, call: Call) -> Any:
        """Call the function: its result, or a coroutine."""
        attempts, verdicts = call
        if self.kind == "attempt":
            return self.call(attempts[0], verdicts[0])
        return self.call(**trl_arguments(self.call, self.name, attempts))

    def values(self, result: Any, count: int) -> list[float | None]:
        """The values of a result. Raises TaskError for anything but ``count`` finite numbers or None."""
        if self.kind == "attempt":
            return [self._number(result, "")]
        try:
            listed = None if isinstance(result, str | bytes | dict) else list(result)
        except TypeError:  # a number, or None
            listed = None
        if listed is None:
            raise self._wrong(f"returned {str(result)[:60]!r}; expected a list of {count} numbers")
        if len(listed) != count:
            raise self._wrong(f"returned {len(listed)} values for {count} completions; expected one for each")
        return [self._number(value, f" for completion {k} of {count}") for k, value in enumerate(listed, 1)]

    def failure(self, error: BaseException) -> CallFailure:
        """What the parent gets about an error of a call."""
        if isinstance(error, TaskError):
            return CallFailure(str(error), error.code)
        details = "".join(traceback.format_exception(error))
        message = f"raised {type(error).__name__}: {str(error)[:1000]}{place_of(self.call, error)}"
        return CallFailure(f"task.rewards: '{self.name}' {message}", "reward_raised", details)

    def _number(self, value: Any, where: str) -> float | None:
        if value is None:
            return None
        try:
            number = math.nan if isinstance(value, str | bytes) else float(value)
        except Exception:  # a list, or a tensor of several values
            number = math.nan
        if not math.isfinite(number):
            raise self._wrong(f"returned {str(value)[:60]!r}{where}; expected a finite number or None")
        if abs(number) > LARGEST_REWARD:
            raise self._wrong(f"returned {number:g}{where}; rewards are at most {LARGEST_REWARD:g} in size")
        return number

    def _wrong(self, what: str) -> TaskError:
        return TaskError(f"task.rewards: '{self.name}' {what}{place_of(self.call)}")


def serve_functions(connection: Connection) -> None:
    """Answer requests until the parent closes the connection."""
    setup: Setup = connection.recv()
    sys.path[:] = setup.path
    try:
        functions = [_load(name) for name in setup.functions]
        for name in setup.modules:
            load_function(name, "task")
    except TaskError as error:  # a file that does not exist or cannot be imported
        connection.send(CallFailure(str(error), error.code))
        return
    connection.send([(each.kind, place_of(each.call)) for each in functions])
    loop = asyncio.new_event_loop()
    while True:
        try:
            sent = connection.recv_bytes()
        except EOFError:  # the parent has ended
            return
        try:
            request: CallRequest = pickle.loads(sent)
        except Exception as error:  # a class that this process cannot import
            what = f"task.rewards: cannot unpickle the problem's data: {type(error).__name__}: {error}"
            connection.send((0, CallFailure(what, "bad_task")))
            continue
        _answer(connection, functions[request.function], request.calls, loop)


def _load(name: str) -> _UserFunction:
    plain, is_trl = split_prefix(name)
    function = load_function(plain, "task.rewards")
    log_name = plain.rpartition(":")[2]
    return _UserFunction(log_name, "trl" if is_trl else kind_of(function, log_name), function)


def _answer(
    connection: Connection, function: _UserFunction, calls: Sequence[Call], loop: asyncio.AbstractEventLoop
) -> None:
    async def await_one(index: int, call: Call) -> None:
        try:
            answer: Any = function.values(await function.start(call), len(call[0]))
        except (Exception, SystemExit) as error:  # user code may raise anything
            answer = function.failure(error)
        connection.send((index, answer))

    async def await_all() -> None:
        await asyncio.gather(*(await_one(index, call) for index, call in enumerate(calls)))

    if is_async(function.call):
        loop.run_until_complete(await_all())
        return
    for index, call in enumerate(calls):
        try:
            answer: Any = function.values(function.start(call), len(call[0]))
        except (Exception, SystemExit) as error:  # user code may raise anything
            answer = function.failure(error)
        connection.send((index, answer))


if __name__ == "__main__":
    die_with_parent()
    show_stacks_on_request()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for the trainer, which saves first
    serve_functions(Connection(int(sys.argv[1])))
