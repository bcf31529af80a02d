"""What this machine keeps of the answers of one box: for the next start, and for the history of runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from grpo_tui.model.answer_cache import RUNS, AnswerCache, Kept
from grpo_tui.model.app_time import monotonic
from remote.boxes import Box

if TYPE_CHECKING:
    from grpo_tui.model.curves import Curves

Note = Callable[[str, dict[str, Any], dict[str, Any]], None]

KEEP_RUNS_S = 5.0
"""Pause between two lists of runs that are kept."""


class KeptAnswers:
    """Keeps the answers of a box, and has those of the last start."""

    def __init__(self, box: Box, cache: AnswerCache | None, note: Note) -> None:
        self._cache = cache
        self.note = note
        """Keeps an answer in the history only."""
        self._box = f"{box.name}\n{box.root}"  # an address changes, a root is another list of runs
        self._runs_kept = 0.0
        self._states: dict[str, Any] = {}
        self._asked: dict[str, object] = {}

    def keep(self, op: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keep an answer of the box."""
        self.note(op, params, answer)
        if self._cache is not None:
            self._cache.put(self._box, op, params, answer)

    def keep_runs(self, runs: list[dict[str, Any]]) -> None:
        """Keep the list of runs, at once where a state changed: an end is announced again otherwise."""
        states = {run["run"]: run.get("state") for run in runs}
        if monotonic() - self._runs_kept >= KEEP_RUNS_S or states != self._states:
            self._runs_kept, self._states = monotonic(), states
            self.keep(RUNS, {}, {"runs": runs})

    def keep_curves(self, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keep the curves of a window, unless they are coarse."""
        if answer["state"] == "whole":
            self.keep("series", params, answer)

    @property
    def has_answers(self) -> bool:
        """Whether answers are kept at all."""
        return self._cache is not None

    def is_wanted(self, name: str, of: object) -> bool:
        """Whether something is to be read for the first time."""
        if self._asked.get(name) == of:
            return False
        self._asked[name] = of
        return True

    async def get(self, op: str, params: dict[str, Any]) -> Kept | None:
        """The kept answer to a request."""
        assert self._cache is not None
        return await asyncio.to_thread(self._cache.get, self._box, op, params)

    async def show_curves(self, curves: Curves) -> None:
        """Show the curves that were kept."""
        kept = await self.get("series", curves.kept_under)
        if kept is not None:
            curves.recall(kept.answer, kept.at)
