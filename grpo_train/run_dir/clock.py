"""The clock that everything which waits reads and waits by. Tests pass one that they advance."""

from __future__ import annotations

import select
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Protocol


class Clock(Protocol):
    """Times in seconds. A wait of ``None`` seconds has no limit."""

    def monotonic(self) -> float:
        """Seconds on a clock that never goes back; it stands while the machine is suspended."""

    def boottime(self) -> float:
        """Seconds on a clock that also runs while the machine is suspended.

        Where the system has none, the wall clock: setting it forward then looks like a suspend.
        """

    def time(self) -> float:
        """Seconds since 1970 (UTC) on the wall clock, which may be set at any time."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        """Wait for an event; returns whether it is set."""

    def select(self, descriptors: Sequence[int], seconds: float | None = None) -> list[int]:
        """Wait until a descriptor can be read (Windows: sockets only); returns those that can, in their order."""

    def wait_exit(self, process: subprocess.Popen[bytes], seconds: float | None = None) -> bool:
        """Wait for the end of a child process; returns whether it has ended."""


class SystemClock:
    """The clock of this machine. See :class:`Clock`."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.time()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))

    def wait(self, event: threading.Event, seconds: float | None = None) -> bool:
        return event.wait(seconds)

    def select(self, descriptors: Sequence[int], seconds: float | None = None) -> list[int]:
        seconds = None if seconds is None else max(0.0, seconds)
        if hasattr(select, "poll"):  # select cannot watch descriptors above 1023
            poll = select.poll()
            for descriptor in descriptors:
                poll.register(descriptor, select.POLLIN)
            ready = [descriptor for descriptor, _ in poll.poll(None if seconds is None else seconds * 1000)]
        else:
            ready, _, _ = select.select(descriptors, [], [], seconds)
        return [descriptor for descriptor in descriptors if descriptor in ready]

    def wait_exit(self, process: subprocess.Popen[bytes], seconds: float | None = None) -> bool:
        try:
            process.wait(None if seconds is None else max(0.0, seconds))
        except subprocess.TimeoutExpired:
            return False
        return True


CLOCK = SystemClock()
