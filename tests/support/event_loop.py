"""An event loop for tests of the app, whose time passes only while nothing is left to do.

When all tasks wait and nothing outside is at work, the loop goes to the end of the next timer at once: tests run with
the product's own timers, wait for none of them, and none is late on a busy machine. While something outside is at work
(a thread, a process, a socket), time passes as usual.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any

from tests.support.patience import PATIENCE

PERSISTENT = ("asyncio_", "answer-cache", "history")
"""Names of threads that live on with nothing to do. Whoever waits for what they do asks for it: see ``flush``."""
LOOK_EVERY_S = 0.002
"""A thread that ends does not say so."""


class SkippingLoop(asyncio.SelectorEventLoop):
    """See the module."""

    def __init__(self) -> None:
        self._now = monotonic()
        self._jobs: set[asyncio.Future[Any]] = set()
        self._others = set(threading.enumerate())
        self._asleep: list[asyncio.Future[None]] = []
        self._woken: list[asyncio.Future[None]] = []
        super().__init__(_Selector(self))

    def time(self) -> float:
        return self._now

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        job = super().run_in_executor(executor, func, *args)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def until(self, condition: Callable[[], Any], most: float = PATIENCE * 10) -> bool:
        """Wait for a condition, at most this many seconds; returns whether it holds.

        It is looked at whenever nothing is left to do.
        """
        give_up_at = self._now + most
        await self.rest()
        while not condition():
            if self._now > give_up_at:
                return False
            await self._until_rest(self._asleep)
        return True

    async def rest(self) -> None:
        """Return when nothing is left to do at this time."""
        await self._until_rest(self._woken)

    async def pass_time(self, seconds: float) -> None:
        """Let time pass, and everything be done that is to be done until then."""
        passed = self.create_future()
        self.call_later(seconds, passed.set_result, None)
        await passed
        await self.rest()

    async def _until_rest(self, waiters: list[asyncio.Future[None]]) -> None:
        waiter = self.create_future()
        waiters.append(waiter)
        await waiter

    def wait(self, seconds: float | None, select: Callable[[float | None], list[Any]], watches: bool) -> list[Any]:
        """Nothing is left to do: wait for the next timer or for something outside."""
        if self._woken:
            woken, self._woken = self._woken, []
            for waiter in woken:
                if not waiter.done():
                    waiter.set_result(None)
            return []
        self._woken, self._asleep = self._asleep, []
        began = self._now
        while seconds is not None and self._now < began + seconds and (watches or self._jobs or self._threads()):
            at = monotonic()
            ready = select(min(LOOK_EVERY_S, began + seconds - self._now))
            self._now = min(began + seconds, self._now + monotonic() - at)
            if ready:
                return ready
        if seconds is None:
            return select(None)
        ready = select(0)  # a thread's last word
        if not ready:
            self._now = began + seconds
        return ready

    def _threads(self) -> bool:
        """Whether a thread is at work that this loop's tasks have started."""
        return any(
            thread not in self._others and not thread.name.startswith(PERSISTENT) for thread in threading.enumerate()
        )


class _Selector(selectors.DefaultSelector):
    """Asks its loop how long to wait."""

    def __init__(self, loop: SkippingLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        return self._loop.wait(timeout, super().select, len(self.get_map()) > 1)  # one is the loop's own


def running_loop() -> SkippingLoop:
    """The event loop of the running test."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SkippingLoop)
    return loop
