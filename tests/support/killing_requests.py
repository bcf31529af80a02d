"""Kill an action at a chosen point on its way to a server: it runs in a fork that gets SIGKILL before it sends bytes.

The action must make its connections itself: a fork would share those of this process.
"""

from __future__ import annotations

import os
import signal
import ssl
from collections.abc import Callable
from typing import Any


def sends_of(action: Callable[[], Any]) -> int:
    """How often an action sends bytes: a header, or a block of a body. The action is executed, in a fork."""
    count = 0

    def counted() -> str:
        def step() -> None:
            nonlocal count
            count += 1

        _before_each_send(step)
        action()
        return str(count)

    result = _forked(counted)
    assert result is not None
    return int(result)


def killed_before_send(n: int, action: Callable[[], Any]) -> bool:
    """Run an action in a fork, killed right before it sends bytes for the n-th time (0, 1, …); False if it ended."""

    def killed() -> str:
        left = n

        def step() -> None:
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1

        _before_each_send(step)
        action()
        return "ended"

    return _forked(killed) is None


def _before_each_send(step: Callable[[], None]) -> None:
    send = ssl.SSLSocket.send

    def counted(self: ssl.SSLSocket, data: Any, flags: int = 0) -> int:
        step()
        return send(self, data, flags)

    ssl.SSLSocket.send = counted  # type: ignore[method-assign]


def _forked(action: Callable[[], str]) -> str | None:
    """What an action returned in a fork; None if it was killed."""
    read_end, write_end = os.pipe()
    if (pid := os.fork()) == 0:
        code = 1
        try:
            os.close(read_end)
            with os.fdopen(write_end, "w") as pipe:
                pipe.write(action())
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        text = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert code in (0, -signal.SIGKILL), f"the action ended with {code}"
    return text if code == 0 else None
