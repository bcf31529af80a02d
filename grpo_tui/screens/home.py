"""Home: the runs of a box and the metrics of the selected one, on one screen at any terminal size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.containers import Container, Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input

from grpo_tui.actions.action import Action
from grpo_tui.charts import CHARTS
from grpo_tui.model.curves import Curves
from grpo_tui.model.store import Store
from grpo_tui.screens.view import ViewScreen, bindings_of
from grpo_tui.widgets.curve_chart import CurveChart
from grpo_tui.widgets.error_panel import ErrorPanel
from grpo_tui.widgets.gpu import GpuPanel
from grpo_tui.widgets.health import HealthLine, HealthSource
from grpo_tui.widgets.lines_panel import LinesPanel
from grpo_tui.widgets.notice import Notice
from grpo_tui.widgets.runs import RunsPanel
from grpo_tui.widgets.sources import CheckpointsSource, CompletionSource, log_sources
from grpo_tui.widgets.stage_bar import StageBar

COMPACT_TABS = frozenset({3, 4})
"""Tabs of the log panel that are separate panels on larger terminals."""


class HomeScreen(ViewScreen):
    """Composes the panels, and chooses what fits."""

    NAME = "home"
    MAIN = "#runs"
    FILTER_HINT = "filter by name or state; enter applies, esc clears"
    BINDINGS: ClassVar = bindings_of("home")

    def __init__(self, store: Store, actions: tuple[Action, ...], readonly: bool) -> None:
        super().__init__(store, actions, readonly)
        self._noticed: bool | None = None

    def panels(self) -> Iterable[Widget]:
        store = self.store
        charts = Container(
            *(
                CurveChart(
                    store, self._curves, chart.metric, id=f"chart-{chart.id}",
                    classes=f"panel chart -color-{chart.id} {chart.shown}",
                )
                for chart in CHARTS
            ),
            id="charts",
        )  # fmt: skip
        logs = [*log_sources(store), CompletionSource(store), CheckpointsSource(store), HealthSource(store)]
        yield Notice(store, id="notice")
        yield Horizontal(
            Vertical(
                RunsPanel(store, id="runs"), LinesPanel(store, [CheckpointsSource(store)], id="checkpoints"), id="left"
            ),
            Vertical(
                ErrorPanel(store, id="error"),
                charts,
                StageBar(store, id="stages"),
                HealthLine(store, id="health"),
                Container(
                    LinesPanel(store, logs, id="log"),
                    LinesPanel(store, [CompletionSource(store)], id="completion"),
                    id="texts",
                ),
                id="right",
            ),
            id="body",
        )
        yield GpuPanel(store, id="gpu")

    def on_mount(self) -> None:
        if self.readonly:
            self.set_launch_hint("[$grpo-muted]started with --readonly; new runs appear here[/]")
        self.tick()

    def set_launch_hint(self, hint: str) -> None:
        """Set the text shown while the box has no runs (markup)."""
        self.query_one(Notice).launch_hint = hint

    def box_changed(self) -> None:
        self._noticed = None

    def _curves(self) -> Curves | None:
        return self.store.curves.get("home")

    def update(self) -> None:
        notice, error = self.query_one(Notice), self.query_one(ErrorPanel)
        wanted = notice.wanted
        if self._noticed != wanted:
            self._noticed = wanted
            notice.display = wanted
            for name in ("#body", "#gpu"):
                self.query_one(name).display = not wanted
            if not wanted and self.focused is None:
                self.query_one(RunsPanel).focus()
        self.set_class(error.wanted, "-error")
        if error.wanted:
            self._set_height(error, 2 + min(error.lines_wanted(), 3 if self.has_class("-short") else 8))
        health = self.query_one(HealthLine)
        health.display = health.wanted(has_room=not self.has_class("-short"))
        gpu = self.query_one(GpuPanel)
        self._set_height(gpu, gpu.lines_wanted() + (0 if self.has_class("-short") else 2))
        compact = self.has_class("-narrow") or self.has_class("-short")
        log = self.query_one("#log", LinesPanel)
        hidden = frozenset() if compact else COMPACT_TABS
        if log.hidden != hidden:
            log.hide_tabs(hidden)
        if (curves := self._curves()) is not None:
            shown = [chart for chart in self.query(CurveChart) if chart.display]
            metrics = tuple(chart.metric for chart in CHARTS if chart.metric in [one.metric for one in shown])
            curves.show(metrics, max((chart.pixel_columns for chart in shown), default=0))
        self._unfocus_hidden()

    def _unfocus_hidden(self) -> None:
        """A panel for which the terminal is too small takes no key."""
        if any(panel.has_focus and not panel.focusable for panel in self.query(LinesPanel)):
            self.query_one(RunsPanel).focus()

    @staticmethod
    def _set_height(widget: Widget, height: int) -> None:
        if widget.styles.height is None or widget.styles.height.value != height:
            widget.styles.height = height

    def action_log_tab(self, index: int) -> None:
        """Show a tab of the log panel (a click on its title)."""
        self.query_one("#log", LinesPanel).show_tab(int(index))

    def on_health_line_opened(self) -> None:
        """Show the health tab of the log panel."""
        log = self.query_one("#log", LinesPanel)
        log.show_tab(next(i for i, source in enumerate(log.sources) if isinstance(source, HealthSource)))

    def show_next_log(self) -> None:
        """Show the next tab of the log panel."""
        log = self.query_one("#log", LinesPanel)
        if log.is_seen:
            log.show_tab(log.active + 1)
        else:
            self.grpo.warn("the logs are not on the screen: restore the zoomed panel or enlarge the terminal")

    # zoom ----------------------------------------------------------------------------------------------

    def zoom(self) -> None:
        """Zoom the focused panel, or restore it."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None and self.focused.has_class("panel"):
            self.maximize(self.focused, container=False)
        self.call_after_refresh(self.tick)

    def back(self) -> bool:
        """Restore the zoomed panel, else clear the filter."""
        runs = self.query_one(RunsPanel)
        if self.maximized is not None:
            self.minimize()
            self.call_after_refresh(self.tick)
        elif runs.filter:
            runs.filter = ""
            self.query_one("#filter", Input).value = ""
            self.tick()
        return True

    def toggle_smoothing(self) -> bool:
        """Turn the moving average of the curves on or off; returns whether it is on."""
        charts = list(self.query(CurveChart))
        smoothed = not charts[0].smoothed
        for chart in charts:
            chart.smoothed = smoothed
            chart.refresh()
        return smoothed

    # filter --------------------------------------------------------------------------------------------

    @property
    def filter(self) -> str:
        return self.query_one(RunsPanel).filter

    def set_filter(self, text: str) -> None:
        runs = self.query_one(RunsPanel)
        runs.filter = text
        runs.tick()

    def filter_closed(self) -> None:
        runs = self.query_one(RunsPanel)
        runs.call_later(runs.select_a_shown_run)  # posted by the panel itself: Textual stops a message at its sender
