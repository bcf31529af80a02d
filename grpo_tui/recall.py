"""What this machine kept of a box: on the screen with its age until the box answers. No Textual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from grpo_tui.model.answer_cache import RUNS

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk


class Recall:
    """Shows what was kept of one box for what the box has not answered yet."""

    def __init__(self, app: Desk, runs_reported: Callable[[], None]) -> None:
        self._app, self._kept, self._store = app, app.kept, app.store
        self._runs_reported = runs_reported

    def tick(self) -> None:
        """Read what is kept of the selection, once, where the box has not answered."""
        if not self._kept.has_answers:
            return
        store = self._store
        if store.runs is None:
            self._once(RUNS, self._store, self._show_runs)
        elif (run := store.selected) is not None:
            if store.shown_at is None:
                self._once("show_run", run, partial(self._show_run, run))
            if not store.metrics.rows:
                self._once("metrics", run, partial(self._show_metrics, run))
            curves = store.curves.get(self._app.view)
            if curves is not None and not curves.curves and curves.metrics:
                self._once("curves", (curves, curves.window, curves.metrics), partial(self._kept.show_curves, curves))

    def _once(self, name: str, of: object, show: Callable[[], Awaitable[None]]) -> None:
        if self._kept.is_wanted(name, of):
            self._app.work(f"kept {name}", show)

    async def _show_runs(self) -> None:
        kept = await self._kept.get(RUNS, {})
        if kept is not None and self._app.store is self._store and self._store.runs is None:
            self._store.recall_runs(kept.answer["runs"], kept.at)
            self._runs_reported()

    async def _show_run(self, run: str) -> None:
        kept = await self._kept.get("show_run", {"run": run})
        if kept is not None and self._store.shown_at is None:
            self._store.show(run, kept.answer, kept.at)

    async def _show_metrics(self, run: str) -> None:
        kept = await self._kept.get("metrics", {"run": run})
        if kept is not None and self._store.selected == run and not self._store.metrics.rows:
            self._store.metrics.recall(kept.answer)
