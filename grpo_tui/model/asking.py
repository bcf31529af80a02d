"""One kind of request: what is asked for now, since when, and when to try again. No Textual."""

from __future__ import annotations

from collections.abc import Callable

from grpo_tui.model.app_time import monotonic

RETRY_S = 5.0
"""Pause before a request that failed is sent again."""
WAIT_S = 1.0
"""An answer that takes longer shows how long."""


class Asking:
    """A newer request replaces the one in flight, whose reply is then dropped."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self._now = now
        self._key: object = None
        self._since: float | None = None
        self._ended_at: float | None = None
        self.problem = ""
        """Why the last request failed."""

    @property
    def is_in_flight(self) -> bool:
        return self._since is not None

    def has_rested(self, seconds: float) -> bool:
        """Whether no request is in flight and the last reply is older than this many seconds."""
        return self._since is None and (self._ended_at is None or self._now() - self._ended_at >= seconds)

    def begin(self, key: object, every: float | None = None) -> bool:
        """Whether to send the request ``key`` now; it is in flight then.

        The request that was answered last is not sent again before ``every`` seconds have passed; None = never.
        """
        now = self._now()
        if key == self._key:
            pause = RETRY_S if self.problem else every
            if self.is_in_flight or pause is None or now - (self._ended_at or now) < pause:
                return False
        self._key, self._since = key, now
        return True

    def end(self, key: object, problem: str = "") -> bool:
        """The request was answered, or failed; False if another one is in flight by now."""
        if key != self._key or not self.is_in_flight:
            return False
        self._since, self._ended_at, self.problem = None, self._now(), problem
        return True

    def forget(self) -> None:
        """Ask again, whatever was answered."""
        self._key, self._since, self.problem = None, None, ""

    def words(self) -> str:
        """What is waited for: ``asking the box``, with the seconds after the first; "" if nothing is."""
        return waiting_words(self._since, now=self._now) if self._since is not None else ""

    def instead(self) -> str:
        """What a panel says that has no answer yet: what is waited for, or why it failed and when it is tried again."""
        return waiting_words(self._since, self.problem, now=self._now)


def waiting_words(
    asked_at: float | None, problem: str = "", again_s: float = RETRY_S, now: Callable[[], float] = monotonic
) -> str:
    """``asking the box 3 s``, or why it failed and when it is tried again. ``asked_at``: by the clock ``now``."""
    if problem:
        return f"✖ {problem}; asked again every {again_s:.0f} s"
    waited = now() - asked_at if asked_at is not None else 0.0
    return f"asking the box {waited:.0f} s" if waited >= WAIT_S else "asking the box"
