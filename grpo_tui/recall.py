"""What the laptop kept of a box: on the screen with its age until the box answers. No Textual."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_tui.comparing import recall_facts, recall_metrics, recall_pairs
from grpo_tui.model.answer_cache import RUNS, AnswerCache, Kept
from grpo_tui.model.app_time import monotonic

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp
    from grpo_tui.history.writer import HistoryWriter
    from grpo_tui.model.curves import Curves
    from grpo_tui.screens.compare import CompareScreen

KEEP_RUNS_S = 5.0
"""Pause between two lists of runs that are kept."""


class Recall:
    """Keeps the answers of one box, and shows those kept before for what the box has not answered yet."""

    def __init__(self, app: GrpoApp, cache: AnswerCache | None, history: HistoryWriter | None = None) -> None:
        self._app, self._cache, self.history = app, cache, history
        self._store, box = app.store, app.connection.box
        self._box = f"{box.name}\n{box.root}"  # an address changes, a root is another list of runs
        self._runs_kept = 0.0
        self._states: dict[str, Any] = {}
        self._asked: dict[str, object] = {}

    def keep(self, op: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keep an answer of the box."""
        self.note(op, params, answer)
        if self._cache is not None:
            self._cache.put(self._box, op, params, answer)

    def note(self, op: str, params: dict[str, Any], answer: dict[str, Any]) -> None:
        """Keep an answer in the history only."""
        if self.history is not None:
            self.history.put(op, params, answer)

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

    def tick(self) -> None:
        """Read what is kept of the selection, once, where the box has not answered."""
        if self._cache is None:
            return
        store = self._store
        if store.runs is None:
            self._once(RUNS, self._store, self._show_runs)
        elif (run := store.selected) is not None:
            if store.shown_at is None:
                self._once("show_run", run, partial(self._show_run, run))
            if not store.metrics.rows:
                self._once("metrics", run, partial(self._show_metrics, run))
            curves = store.curves.get(self._app.views.name)
            if curves is not None and not curves.curves and curves.metrics:
                self._once("curves", (curves, curves.window, curves.metrics), partial(self._show_curves, curves))

    def tick_compared(self, screen: CompareScreen) -> None:
        """Read what is kept of the compared runs, once, where the box has not answered."""
        if self._cache is None:
            return
        comparison, app = screen.comparison, self._app
        for run in comparison.runs:
            if run.facts is None:
                self._once(f"facts of {run.name}", run, partial(recall_facts, app, run))
            curves = run.curves
            if not curves.curves and curves.metrics:
                of = (run, curves.window, curves.metrics)
                self._once(f"curves of {run.name}", of, partial(self._show_curves, curves))
        if not screen.logged[1].rows:
            self._once("metrics of the pinned run", screen.logged[1], partial(recall_metrics, app, *screen.logged))
        if not self._store.connected and (params := screen.paired.wanted(comparison.pin, comparison.runs)) is not None:
            self._once("pairs", repr(params), partial(recall_pairs, app, screen.paired, params))

    def _once(self, name: str, of: object, show: Callable[[], Awaitable[None]]) -> None:
        if self._asked.get(name) != of:
            self._asked[name] = of
            self._app.work(f"kept {name}", show)

    async def get(self, op: str, params: dict[str, Any]) -> Kept | None:
        """The kept answer to a request."""
        assert self._cache is not None
        return await asyncio.to_thread(self._cache.get, self._box, op, params)

    async def _show_runs(self) -> None:
        kept = await self.get(RUNS, {})
        if kept is not None and self._app.store is self._store and self._store.runs is None:
            self._store.recall_runs(kept.answer["runs"], kept.at)
            self._app.runs_reported()
        else:
            self._app.startup.release()

    async def _show_run(self, run: str) -> None:
        kept = await self.get("show_run", {"run": run})
        if kept is not None and self._store.shown_at is None:
            self._store.show(run, kept.answer, kept.at)

    async def _show_metrics(self, run: str) -> None:
        kept = await self.get("metrics", {"run": run})
        if kept is not None and self._store.selected == run and not self._store.metrics.rows:
            self._store.metrics.recall(kept.answer)

    async def _show_curves(self, curves: Curves) -> None:
        kept = await self.get("series", curves.kept_under)
        if kept is not None:
            curves.recall(kept.answer, kept.at)
