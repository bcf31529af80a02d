"""What the app keeps for its next start: box, run, view, order and names of the list, dismissed entries. No Textual."""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_tui.model.needs import Look
from grpo_tui.model.run_list import Order
from grpo_tui.preferences import Preferences

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp

EVERY_TICKS = 4
"""A change is written after at most this many ticks."""


class Memory:
    """Compares what is shown with the preferences, and writes them."""

    def __init__(self, app: GrpoApp, preferences: Preferences) -> None:
        self._app, self.preferences = app, preferences
        self._last_view = preferences.view
        """The view of the last start until it is shown; "" afterwards."""
        self._ticks = 0
        self._task: str | None = None
        """Of the run whose metrics are in the charts."""

    def restore(self) -> None:
        """Show the list of runs as it was."""
        preferences, runs = self.preferences, self._app.home.runs
        if preferences.order:
            runs.order = Order(preferences.order, preferences.descending)
        runs.full_names = preferences.full_names
        self._app.views.charts.view.restore(preferences.axes, self._app.store.price_per_hour is not None)

    def run_to_select(self) -> str | None:
        """The run of the last start, else a live one, else the newest."""
        store = self._app.store
        names = [row.name for row in store.runs or ()]
        last = self.preferences.runs.get(self.box)
        if last in names:
            return last
        live = store.live_runs()
        return live[0].name if live else names[0] if names else None

    @property
    def box(self) -> str:
        """Names the list of runs: a box may have several roots."""
        box = self._app.connection.box
        return f"{box.name} {box.root}".strip()

    def look(self) -> Look:
        """What is kept of the looks at the box."""
        return Look.from_json(self.preferences.looks.get(self.box), self._app.store.now())

    def tick(self) -> None:
        """Show the last view once there is a run for it, and note what is shown now."""
        app = self._app
        if app.store.run is None:
            return
        if (view := self._last_view) and app.views.name == "home":
            self._last_view = ""
            if any(action.scope == view for action in app.actions):
                app.views.show(view)
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
        app, preferences, runs = self._app, self.preferences, self._app.home.runs
        preferences.order, preferences.descending = runs.order.column, runs.order.descending
        preferences.full_names = runs.full_names
        preferences.box, preferences.view = app.store.box, app.views.name
        preferences.runs[self.box] = app.store.selected or ""
        self._note_charts()
        preferences.looks[self.box] = app.home.needs.look.to_json()

    def _note_charts(self) -> None:
        """Note what the charts show; for a run of another task, show the metrics that were chosen for that."""
        app, preferences = self._app, self.preferences
        view, run = app.views.charts.view, app.store.selected or ""
        preferences.axes = view.to_json()
        if run not in app.home.runs.facts.configs:
            return  # not known yet
        task = str(app.home.runs.facts.config(run, "task.name") or "")
        if task != self._task:
            self._task, view.shown = task, [*preferences.metrics.get(task, [])]
        elif view.shown or task in preferences.metrics:
            preferences.metrics[task] = [*view.shown]
