"""What the app keeps for its next start: box, run, view, order and names of the list, dismissed entries. No Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_tui.model.run_list import Order

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
        preferences.looks[app.connection.list_name] = self._views.home.needs.look.to_json()

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
