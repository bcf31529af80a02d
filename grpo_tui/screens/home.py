"""Home: the runs of a box and the metrics of the selected one, on one screen at any terminal size."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from grpo_tui.actions.action import Action
from grpo_tui.actions.registry import ACTIONS
from grpo_tui.charts import CHARTS
from grpo_tui.model.curves import Curves
from grpo_tui.model.store import Store
from grpo_tui.widgets.curve_chart import CurveChart
from grpo_tui.widgets.error_panel import ErrorPanel
from grpo_tui.widgets.gpu import GpuPanel
from grpo_tui.widgets.header import HeaderBar
from grpo_tui.widgets.health import HealthLine, HealthSource
from grpo_tui.widgets.key_bar import KeyBar
from grpo_tui.widgets.lines_panel import LinesPanel
from grpo_tui.widgets.notice import Notice
from grpo_tui.widgets.runs import RunsPanel
from grpo_tui.widgets.sources import CheckpointsSource, CompletionSource, log_sources
from grpo_tui.widgets.stage_bar import StageBar

if TYPE_CHECKING:
    from grpo_tui.app import GrpoApp

COMPACT_TABS = frozenset({3, 4})
"""Tabs of the log panel that are separate panels on larger terminals."""


class HomeScreen(Screen[None]):
    """Composes the panels, passes them the tick, and chooses what fits."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-medium"), (170, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall"), (50, "-high")]  # noqa: RUF012
    ALLOW_IN_MAXIMIZED_VIEW = "HeaderBar,KeyBar"
    BINDINGS: ClassVar = [
        Binding(action.key, f"app.act('{action.id}')", action.label, id=action.id, show=False)
        for action in ACTIONS
        if action.is_in("home")
    ]

    def __init__(self, store: Store, actions: tuple[Action, ...], readonly: bool) -> None:
        super().__init__()
        self.store, self.readonly = store, readonly
        self.registry = actions
        self._noticed: bool | None = None
        self._recomposing = False

    def compose(self) -> ComposeResult:
        store = self.store
        yield HeaderBar(store, self.readonly, id="header")
        yield Notice(store, id="notice")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield RunsPanel(store, id="runs")
                yield LinesPanel(store, [CheckpointsSource(store)], id="checkpoints")
            with Vertical(id="right"):
                yield ErrorPanel(store, id="error")
                with Container(id="charts"):
                    for chart in CHARTS:
                        classes = f"panel chart -color-{chart.id} {chart.shown}"
                        yield CurveChart(store, self._curves, chart.metric, id=f"chart-{chart.id}", classes=classes)
                yield StageBar(store, id="stages")
                yield HealthLine(store, id="health")
                with Container(id="texts"):
                    yield LinesPanel(
                        store,
                        [*log_sources(store), CompletionSource(store), CheckpointsSource(store), HealthSource(store)],
                        id="log",
                    )
                    yield LinesPanel(store, [CompletionSource(store)], id="completion")
        yield GpuPanel(store, id="gpu")
        yield Input(id="filter", placeholder="filter by name or state; enter applies, esc clears", compact=True)
        yield KeyBar(store, self.registry, self.readonly, view="home", id="keys")

    async def on_event(self, event: events.Event) -> None:
        if not cast("GrpoApp", self.app).holds(event):
            await super().on_event(event)

    def on_mount(self) -> None:
        if self.readonly:
            self.set_launch_hint("[$grpo-muted]started with --readonly; new runs appear here[/]")
        self.tick()

    def set_launch_hint(self, hint: str) -> None:
        """Set the text shown while the box has no runs (markup)."""
        self.query_one(Notice).launch_hint = hint

    async def set_store(self, store: Store) -> None:
        """Show another box. The screen is kept: Textual's Input needs one at all times."""
        self.minimize()
        self.store, self._noticed = store, None
        self._recomposing = True
        try:
            await self.recompose()
        finally:
            self._recomposing = False
        self.tick()

    def _curves(self) -> Curves | None:
        return self.store.curves.get("home")

    def tick(self) -> None:
        """Update every panel from the store."""
        if self._recomposing or not self.is_mounted or not self.query(Notice):  # not composed yet, or being removed
            return
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
        for widget in self.query("HeaderBar, Notice, .panel, StageBar, HealthLine, KeyBar"):
            widget.tick()  # type: ignore[attr-defined]

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
            cast("GrpoApp", self.app).warn(
                "the logs are not on the screen: restore the zoomed panel or enlarge the terminal"
            )

    # zoom ----------------------------------------------------------------------------------------------

    def zoom(self) -> None:
        """Zoom the focused panel, or restore it."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None and self.focused.has_class("panel"):
            self.maximize(self.focused, container=False)
        self.call_after_refresh(self.tick)

    def back(self) -> None:
        """Restore the zoomed panel, else clear the filter."""
        runs = self.query_one(RunsPanel)
        if self.maximized is not None:
            self.minimize()
            self.call_after_refresh(self.tick)
        elif runs.filter:
            runs.filter = ""
            self.query_one("#filter", Input).value = ""
            self.tick()

    def toggle_smoothing(self) -> bool:
        """Turn the moving average of the curves on or off; returns whether it is on."""
        charts = list(self.query(CurveChart))
        smoothed = not charts[0].smoothed
        for chart in charts:
            chart.smoothed = smoothed
            chart.refresh()
        return smoothed

    # filter --------------------------------------------------------------------------------------------

    def show_filter(self) -> None:
        """Show the filter line and focus it."""
        line = self.query_one("#filter", Input)
        line.display = True
        line.value = self.query_one(RunsPanel).filter
        line.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        runs = self.query_one(RunsPanel)
        runs.filter = event.value.strip()
        runs.tick()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self._close_filter()
        runs = self.query_one(RunsPanel)
        runs.call_later(runs.select_a_shown_run)  # posted by the panel itself: Textual stops a message at its sender

    def on_key(self, event: events.Key) -> None:
        line = self.query_one("#filter", Input)
        if line.has_focus and event.key == "escape":
            event.stop()
            event.prevent_default()
            line.value = ""
            self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(RunsPanel).focus()
