"""One kind of request: what is asked for, since when, and when to try again; the clock of the app. No Textual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable


def monotonic() -> float:
    """Seconds on the clock of the running event loop, by which the app's timers run: this machine's, but in tests."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # a thread without one
        return time.monotonic()


RETRY_S = 5.0
"""Pause before a request that failed is sent again."""
SOON_S = 0.5
"""Pause before the box is asked again for what is under way: an index that it makes, a file that grows."""
LIVE_S = 5.0
"""Pause before the box is asked again for what a live run adds to …"""
REST_S = 30.0
"""… and for what changes rarely."""
CURSOR_S = 0.1
"""A cursor, or a filter that is typed, rests this long before anything is requested for it."""
ENGINE_S = 180.0
"""Limit on a request for which the box starts its engine: longer than the box waits for it."""
WAIT_S = 1.0
"""An answer that takes longer shows how long."""


NOT_READ = "not connected: not read yet"


class Asking:
    """A newer request replaces the one in flight, whose reply is then dropped. ``retry_s``: pause after a failure."""

    def __init__(self, now: Callable[[], float] = monotonic, retry_s: float = RETRY_S) -> None:
        self._now, self._retry_s = now, retry_s
        self.key: object = None
        """What was asked for last."""
        self.ended: object = None
        """What the last reply was about: an answer, or a failure."""
        self.is_in_flight = False
        self.is_answered = False
        """Whether the box has ever answered."""
        self.problem = ""
        """Why the last request failed."""
        self._since: float | None = None
        self._answered_since = self._ended_at = 0.0

    @property
    def waited(self) -> float:
        """Seconds since the request was sent; 0 if nothing is waited for."""
        return self._now() - self._since if self._since is not None else 0.0

    @property
    def is_waiting(self) -> bool:
        """Whether an answer is waited for: also the whole one after a coarse one."""
        return self._since is not None

    @property
    def age(self) -> float:
        """Seconds since the last answer was asked for, from when on it holds."""
        return self._now() - self._answered_since

    def is_due(self, every: float | None) -> bool:
        """Whether no request is in flight and the pause since the last reply is over; None = an answer lasts."""
        pause = self._retry_s if self.problem else every
        if self.is_in_flight or self.ended is None:
            return not self.is_in_flight
        return pause is not None and self._now() - self._ended_at >= pause

    def begin(self, key: object, every: float | None = None) -> bool:
        """Whether to send the request ``key`` now; it is in flight then.

        The request that was answered last is not sent again before ``every`` seconds have passed; None = never.
        """
        is_known = key == self.key if self.is_in_flight else key == self.ended and not self.is_due(every)
        if is_known:
            return False
        self.start(key)
        return True

    def start(self, key: object) -> None:
        """The request ``key`` is in flight, whatever was before."""
        if self._since is None or key != self.key:
            self._since = self._now()
        self.key, self.is_in_flight = key, True

    def end(self, key: object, problem: str = "", *, is_whole: bool = True) -> bool:
        """The request was answered, or failed; False if another one is in flight by now.

        After an answer that is not whole, the waiting continues.
        """
        if key != self.key or not self.is_in_flight:
            return False
        if not problem:
            self.is_answered, self._answered_since = True, self._now() - self.waited
        self.ended, self.problem, self.is_in_flight, self._ended_at = key, problem, False, self._now()
        self._since = self._since if not is_whole and not problem else None
        return True

    def cancel(self, key: object) -> None:
        """The request in flight was given up, if it is ``key``."""
        if key == self.key and self.is_in_flight:
            self.is_in_flight, self._since = False, None

    def forget(self) -> None:
        """Ask again, whatever was answered."""
        self.ended, self.is_in_flight, self._since, self.problem = None, False, None, ""

    def words(self) -> str:
        """What is waited for: ``asking the box``, with the seconds after the first; "" if nothing is."""
        return asking_words(self.waited) if self.is_waiting else ""

    def instead(self, connected: bool = True) -> str:
        """What a panel says that has no answer yet: what is waited for, or why it failed and when it is tried again."""
        if not connected:
            return NOT_READ
        return f"✖ {self.problem}; {self.again()}" if self.problem else asking_words(self.waited)

    def again(self) -> str:
        """When a request that failed is sent again."""
        return f"asked again every {self._retry_s:.0f} s"


def asking_words(waited: float = 0.0) -> str:
    """``asking the box 3 s``."""
    return f"asking the box{seconds_waited(waited)}"


def seconds_waited(waited: float) -> str:
    """`` 3 s``; "" before an answer is late."""
    return f" {waited:.0f} s" if waited >= WAIT_S else ""
