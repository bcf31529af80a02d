"""A clock that stands until a test advances it, for everything that takes a :class:`grpo_train.run_dir.clock.Clock`.

    clock = TestClock()
    client = BoxClient(box, on_event, clock=clock)
    clock.advance(15)  # every wait of these 15 seconds has ended in its order, and all threads wait again

A thread that has waited by the clock once belongs to it: :meth:`TestClock.advance` moves the time only while each of
them waits for something that has not happened yet. So nothing is late on a busy machine, and a message that another
thread of the clock has yet to read is read at the time at which it was sent. A process, and a thread that waits in
another way, are not known to the clock: wait for what they do before the time is advanced.
"""

from __future__ import annotations

import math
import os
import select
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from tests.support.patience import PATIENCE

GIVE_UP_S = 15.0


class TestClock:
    """See the module and :class:`grpo_train.run_dir.clock.Clock`."""

    __test__ = False

    def __init__(self, wall: float = 1_750_000_000.0) -> None:
        self._now = 1_000.0
        self._wall = wall - self._now
        self._suspended_s = 0.0
        self._changed = threading.Condition(threading.RLock())
        self._waits: dict[threading.Thread, _Wait] = {}
        self._known: set[threading.Thread] = set()
        self._absent: set[str] = set()

    # what the product calls ----------------------------------------------------------------------------------

    def monotonic(self) -> float:
        return self._now

    def boottime(self) -> float:
        return self._now + self._suspended_s

    def time(self) -> float:
        return self._now + self._suspended_s + self._wall

    def sleep(self, seconds: float) -> None:
        self.wait(threading.Event(), seconds)

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        with self._waiting(_EventWait(event), seconds) as wait:
            wait.run(self)
        return event.is_set()

    def select(self, descriptors: Sequence[int], seconds: float | None = None) -> list[int]:
        with self._waiting(_DescriptorWait(descriptors), seconds) as wait:
            wait.run(self)
        ready, _, _ = select.select(descriptors, [], [], 0)
        return [descriptor for descriptor in descriptors if descriptor in ready]

    def wait_exit(self, process: subprocess.Popen[bytes], seconds: float | None = None) -> bool:
        if process.poll() is not None:
            return True
        with suppress(ProcessLookupError):
            descriptor = os.pidfd_open(process.pid)
            try:
                self.select([descriptor], seconds)
            finally:
                os.close(descriptor)
        return process.poll() is not None

    # what tests call -----------------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Let time pass. Every wait that ends meanwhile ends at its time, and what follows from it is done then."""
        until = self._now + seconds
        self.settle()
        while (due := self._next()) <= until:
            self._go_to(due)
        self._now = until

    def advance_until(self, condition: Callable[[], object], most: float = 3600.0) -> float:
        """Let time pass from one wait's end to the next until a condition holds; returns the seconds that passed.

        Fails if it does not hold within ``most`` seconds.
        """
        began = self._now
        self.settle()
        while not condition():
            due = self._next()
            if due > began + most:
                raise AssertionError(f"not within {most:g} s: {condition}")
            self._go_to(due)
        return self._now - began

    def wait_for_threads(self, count: int) -> None:
        """Wait until this number of threads belongs to the clock."""
        give_up_at = time.monotonic() + PATIENCE * GIVE_UP_S
        with self._changed:
            while len(self._known) < count:
                assert time.monotonic() < give_up_at, f"{len(self._known)} of {count} threads wait by the clock"
                self._changed.wait(1.0)

    @contextmanager
    def without(self, *names: str) -> Iterator[None]:
        """Do not wait for the threads of these names: what they wait for is up to the test."""
        self._absent |= {*names}
        try:
            yield
        finally:
            self._absent -= {*names}

    def suspend(self, seconds: float) -> None:
        """Let the machine sleep: the monotonic clock stands, the others run on."""
        self._suspended_s += seconds

    def set(self, seconds: float) -> None:
        """Set the wall clock forward, or back if negative."""
        self._wall += seconds

    def settle(self) -> None:
        """Wait until every thread of this clock waits for what has not happened yet."""
        give_up_at = time.monotonic() + PATIENCE * GIVE_UP_S
        with self._changed:
            while busy := self._busy():
                if time.monotonic() > give_up_at:
                    raise AssertionError("\n".join(map(_stack, busy)))
                self._changed.wait(0.002)  # a descriptor that becomes readable does not say so

    # -----------------------------------------------------------------------------------------------------------

    def _next(self) -> float:
        """When the next wait ends."""
        with self._changed:
            return min((wait.deadline for wait in self._waits.values()), default=math.inf)

    def _go_to(self, due: float) -> None:
        with self._changed:
            self._now = max(self._now, due)
            ended = [wait for wait in self._waits.values() if wait.deadline <= self._now]
        for wait in ended:
            wait.wake()
        self.settle()

    def _busy(self) -> list[threading.Thread]:
        self._known = {thread for thread in self._known if thread.is_alive()}
        found = []
        for thread in self._known - {threading.current_thread()}:
            wait = self._waits.get(thread)
            if wait is None and thread.name in self._absent:
                continue
            if wait is None or wait.deadline <= self._now or wait.has_happened():
                found.append(thread)
        return found

    @contextmanager
    def _waiting(self, wait: _Wait, seconds: float | None) -> Iterator[_Wait]:
        thread = threading.current_thread()
        with self._changed:
            wait.deadline = math.inf if seconds is None else self._now + max(0.0, seconds)
            self._waits[thread] = wait
            self._known.add(thread)
            self._changed.notify_all()
        try:
            yield wait
        finally:
            with self._changed:
                del self._waits[thread]
            wait.close()


class LeapingClock(TestClock):
    """A clock that each wait with a limit sets forward to its end, at once and whatever other threads do.

    It returns early only for what has happened before: no wait takes time.
    """

    def sleep(self, seconds: float) -> None:
        with self._changed:
            self._now += seconds

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        if seconds is None:
            return event.wait()
        if not event.is_set():
            self.sleep(seconds)
        return event.is_set()

    def select(self, descriptors: Sequence[int], seconds: float | None = None) -> list[int]:
        ready, _, _ = select.select(descriptors, [], [], None if seconds is None else 0)
        if not ready:
            self.sleep(seconds or 0.0)
        return [descriptor for descriptor in descriptors if descriptor in ready]


class _Wait:
    """One wait of one thread."""

    deadline = math.inf

    def run(self, clock: TestClock) -> None:
        """Wait until it has happened, or the clock has reached the deadline."""
        raise NotImplementedError

    def has_happened(self) -> bool:
        raise NotImplementedError

    def wake(self) -> None:
        """Let :meth:`run` look at the clock again."""
        raise NotImplementedError

    def close(self) -> None:
        pass


class _EventWait(_Wait):
    def __init__(self, event: threading.Event) -> None:
        self._event = event
        self._condition: threading.Condition = event._cond  # type: ignore[attr-defined]  # an event cannot be left otherwise

    def run(self, clock: TestClock) -> None:
        with self._condition:
            while not self._event.is_set() and clock.monotonic() < self.deadline:
                self._condition.wait()

    def has_happened(self) -> bool:
        return self._event.is_set()

    def wake(self) -> None:
        with self._condition:
            self._condition.notify_all()


class _DescriptorWait(_Wait):
    def __init__(self, descriptors: Sequence[int]) -> None:
        self._descriptors = list(descriptors)
        self._reader, self._writer = os.pipe()
        self._is_open = True
        self._lock = threading.Lock()

    def run(self, clock: TestClock) -> None:
        while clock.monotonic() < self.deadline:
            ready, _, _ = select.select([*self._descriptors, self._reader], [], [])
            if any(descriptor != self._reader for descriptor in ready):
                return
            os.read(self._reader, 1)

    def has_happened(self) -> bool:
        try:
            return bool(select.select(self._descriptors, [], [], 0)[0])
        except (OSError, ValueError):
            return False  # closed: its thread finds out when it is woken

    def wake(self) -> None:
        with self._lock:  # a closed descriptor's number may be another file's
            if self._is_open:
                os.write(self._writer, b"\0")

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            os.close(self._reader)
            os.close(self._writer)


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    lines = traceback.format_stack(frame)[-6:] if frame else ["ended\n"]
    return f"thread {thread.name} does not wait by the clock:\n{''.join(lines)}"
