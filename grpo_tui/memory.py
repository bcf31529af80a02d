"""What the app keeps for its next start, and what this machine kept of a box: shown with its age. No Textual."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from grpo_tui.box.kept import RUNS
from grpo_tui.box.run_list import Order

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk
    from grpo_tui.views.registry import Views

EVERY_TICKS = 4
"""A change is written after at most this many ticks."""


class Memory:
    """Compares what is shown with the preferences, and writes them."""

    def __init__(self, app: Desk, views: Views) -> None:
        self._app, self._views, self.preferences = app, views, app.preferences
        self._last_view = app.preferences.view
        """The view of the last start until it is shown; "" afterwards."""
        self._ticks = 0
        self._task: str | None = None
        """Of the run whose metrics are in the charts."""

    def restore(self) -> None:
        """Show the list of runs as it was."""
        preferences, runs = self.preferences, self._app.runs
        if preferences.order:
            runs.order = Order(preferences.order, preferences.descending)
        runs.full_names = preferences.full_names
        self._app.charts.restore(preferences.axes, self._app.store.price_per_hour is not None)

    def run_to_select(self) -> str | None:
        """The run of the last start, else a live one, else the newest."""
        store = self._app.store
        names = [row.name for row in store.runs or ()]
        last = self.preferences.runs.get(self._app.connection.list_name)
        if last in names:
            return last
        live = store.live_runs()
        return live[0].name if live else names[0] if names else None

    def tick(self) -> None:
        """Show the last view once there is a run for it, and note what is shown now."""
        app = self._app
        if app.store.run is None:
            return
        if (view := self._last_view) and app.view == "home":
            self._last_view = ""
            if any(action.scope == view for action in app.actions):
                self._views.show(view)
        self._note()
        self._ticks += 1
        if self._ticks % EVERY_TICKS == 0:
            self.preferences.save()

    def end(self) -> None:
        """The app ends."""
        if self._app.store.run is not None:
            self._note()
        self.preferences.save()

    def _note(self) -> None:
        app, preferences, runs = self._app, self.preferences, self._app.runs
        preferences.order, preferences.descending = runs.order.column, runs.order.descending
        preferences.full_names = runs.full_names
        preferences.box, preferences.view = app.store.box, app.view
        preferences.runs[app.connection.list_name] = app.store.selected or ""
        self._note_charts()
        preferences.looks[app.connection.list_name] = {"dismissed": sorted(self._views.home.needs.dismissed)}

    def _note_charts(self) -> None:
        """Note what the charts show; for a run of another task, show the metrics that were chosen for that."""
        app, preferences = self._app, self.preferences
        view, run = app.charts, app.store.selected or ""
        preferences.axes = view.to_json()
        if run not in app.runs.facts.configs:
            return  # not known yet
        task = str(app.runs.facts.config(run, "task.name") or "")
        if task != self._task:
            self._task, view.shown = task, [*preferences.metrics.get(task, [])]
        elif view.shown or task in preferences.metrics:
            preferences.metrics[task] = [*view.shown]


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
