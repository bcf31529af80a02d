"""A search in one file: what is found so far, and which match is next. No Textual."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.model.app_time import monotonic

FAST_S = 0.3
LIVE_S = 1.5
REST_S = 10.0
RETRY_S = 2.0
MARGIN = 10
"""Matches that are known on each side of the cursor."""


@dataclass
class LogSearch:
    """A search for a regular expression."""

    run: str
    path: str
    pattern: str
    level: str = ""
    cursor: int = 0
    """Where the line under the cursor begins."""
    around: list[int] = field(default_factory=list)
    """Where matching lines begin, in order."""
    before: int = 0
    """Matching lines before those …"""
    after: int = 0
    """… and after."""
    total: int = 0
    searched: float = 0.0
    size: int = 0
    is_kept: bool = True
    is_answered: bool = False
    problem: str = ""
    is_refused: bool = False
    """Whether the pattern is not a regular expression."""
    version: int = 0
    asked_at: float | None = None
    wants: int = 0
    """Distance to the match to show, in matches; negative: backward; 0: none is to be shown."""
    is_new: bool = True
    """Whether the nearest match is to be shown, the first time."""
    _next_at: float = 0.0
    _asked_for: int = -1

    def request(self, is_live: bool, now: float | None = None) -> dict[str, Any] | None:
        """Parameters of the request that is due; None without one."""
        now = monotonic() if now is None else now
        if self.asked_at is not None or self.is_refused or (self.problem and now < self._next_at):
            return None
        is_short = self._is_short() and self.cursor != self._asked_for
        if (
            self.is_answered
            and now < self._next_at
            and not (is_short or (self.wants and self._asked_for != self.cursor))
        ):
            return None
        self.asked_at, self._asked_for = now, self.cursor
        return {
            "run": self.run, "path": self.path, "pattern": self.pattern, "level": self.level, "at": self.cursor,
        }  # fmt: skip

    def _is_short(self) -> bool:
        """Whether few of the matches near the cursor are known."""
        place = bisect_left(self.around, self.cursor)
        return (self.before > 0 and place < MARGIN) or (self.after > 0 and len(self.around) - place < MARGIN)

    def answer(self, reply: Mapping[str, Any], is_live: bool, now: float | None = None) -> None:
        """Take the reply."""
        now = monotonic() if now is None else now
        self.around, self.before, self.after = reply["around"], reply["before"], reply["after"]
        self.total, self.searched, self.size = reply["total"], reply["searched"], reply["size"]
        self.is_kept, self.is_answered, self.problem, self.asked_at = reply["kept"], True, "", None
        self._next_at = now + (FAST_S if self.searched < 1 else LIVE_S if is_live else REST_S)
        self.version += 1

    def fail(self, code: str, message: str, now: float | None = None) -> None:
        """The request failed."""
        self.asked_at, self.problem, self.is_refused = None, message, code == "bad_request"
        self._next_at = (monotonic() if now is None else now) + RETRY_S
        self.version += 1

    @property
    def index(self) -> int | None:
        """Which match the cursor is on, from 1; None if it is on none, or older matches are not known yet."""
        place = bisect_left(self.around, self.cursor)
        if self.searched < 1 or place == len(self.around) or self.around[place] != self.cursor:
            return None
        return self.before + place + 1

    def jump(self) -> int | None:
        """Where the match begins that is to be shown now; None if there is none, or it is not known yet."""
        if self.is_new:
            return self._nearest()
        found = None
        while self.wants:
            by = 1 if self.wants > 0 else -1
            following = self.neighbor(by)
            if following is None:
                if self._is_known(by):
                    self.wants = 0
                break
            found = self.cursor = following
            self.wants -= by
        return found

    def neighbor(self, by: int) -> int | None:
        """The match after the cursor (+1), or before it (-1), as far as it is known here."""
        if by > 0:
            place = bisect_right(self.around, self.cursor)
            return self.around[place] if place < len(self.around) else None
        place = bisect_left(self.around, self.cursor)
        return self.around[place - 1] if place else None

    def _is_known(self, by: int) -> bool:
        """Whether there is none in that direction."""
        if by > 0:
            return self.is_answered and self.after == 0
        return self.is_answered and self.before == 0 and self.searched >= 1

    def _nearest(self) -> int | None:
        """The first match at the cursor or after it, else the last one before it."""
        is_passed = self.cursor >= self.size * (1 - self.searched)
        if not self.is_answered or not (is_passed or self.searched >= 1):
            return None
        place = bisect_left(self.around, self.cursor)
        if place < len(self.around):
            self.is_new = False
            return self.around[place]
        if place:
            self.is_new = False
            return self.around[place - 1]
        self.is_new = self.searched < 1
        return None
