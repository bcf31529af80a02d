"""A search for samples: pages from the box, newest first, until it has all or enough. No Textual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import Asking
from remote.protocol.index import UNREADABLE

PAGE = 200
ENOUGH = 1_000
"""Matches after which the search rests until the reader comes to them."""
FINAL = ("bad_request", "timeout")
"""Codes of errors that the same search would have again."""


class Key(NamedTuple):
    """A request for a page."""

    before: int | None
    turn: int


class RolloutSearch:
    """The samples of a step, or of the whole file, that meet a condition."""

    def __init__(
        self,
        run: str,
        where: list[Any],
        step: int | None,
        now: Callable[[], float] = monotonic,
        folder: str = "",
    ) -> None:
        """``folder``: of an evaluated step, which is searched."""
        self.run, self.where, self.folder = run, where, folder
        self.step = step
        """None: the whole file."""
        self.matches: list[dict[str, Any]] = []
        """Rows, newest first."""
        self.offsets: set[int] = set()
        self.steps: Counter[int] = Counter()
        """Matches by step."""
        self.searched = 0.0
        self.is_coarse = False
        """Whether only what was indexed has been searched."""
        self.is_done = False
        self.version = 0
        self.asking = Asking(now)
        self._before: int | None = None
        self._wanted = ENOUGH
        self._turn = 0

    @property
    def rests(self) -> bool:
        """Whether it goes on only when asked to."""
        return not self.is_done and len(self.matches) >= self._wanted

    def go_on(self) -> None:
        """Find more, if it rests."""
        if self.rests:
            self._wanted = len(self.matches) + ENOUGH

    def request(self) -> tuple[Key, dict[str, Any]] | None:
        """The request to send now; None if there is none."""
        if self.is_done or self.rests:
            return None
        key = Key(self._before, self._turn)
        if not self.asking.begin(key):
            return None
        optional = {"step": self.step, "before": self._before}
        given = {name: value for name, value in optional.items() if value is not None}
        return key, {"run": self.run, "folder": self.folder, "where": self.where, "limit": PAGE, **given}

    def answer(self, key: Key, reply: Mapping[str, Any]) -> None:
        """Apply a page."""
        if not self.asking.end(key):
            return
        for row in reply["matches"]:
            if UNREADABLE not in row and row["offset"] not in self.offsets:
                self.matches.append(row)
                self.offsets.add(row["offset"])
                if row.get("step") is not None:
                    self.steps[int(row["step"])] += 1
        self.searched, self._before = reply["searched"], reply["next"]
        self.is_done = self._before is None
        self.is_coarse = self.is_done and self.step is None and reply["state"] != "whole"
        self._turn += 1  # a page without a match ends where it began
        self.version += 1

    def fail(self, key: Key, problem: str, code: str) -> None:
        """The box refused, or did not answer. What it refuses is not asked again."""
        self.asking.end(key, problem)
        self.is_done = code in FINAL
        self.version += 1

    def words(self) -> str:
        """How far it is: ``217 matches, 34 % searched``."""
        count = f"{len(self.matches):,} match{'' if len(self.matches) == 1 else 'es'}"
        if self.asking.problem:
            return f"{count}; search failed: {self.asking.problem}"
        if not self.is_done:
            return f"{count}, {self.searched:.0%}".replace("%", " % searched")
        return f"{count} in what is indexed so far" if self.is_coarse else count
