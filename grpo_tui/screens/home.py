"""Home: the runs of a box and the learning of the selected one, on one screen, at any size of terminal."""

from __future__ import annotations

from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Container, Horizontal, Vertical
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Input

from grpo_tui.actions import ACTIONS, Action
from grpo_tui.model.store import Store
from grpo_tui.widgets.chart import MetricChart
from grpo_tui.widgets.error_panel import ErrorPanel
from grpo_tui.widgets.gpu import GpuPanel
from grpo_tui.widgets.header import HeaderBar
from grpo_tui.widgets.health import HealthLine, HealthSource
from grpo_tui.widgets.key_bar import KeyBar
from grpo_tui.widgets.lines_panel import LineSource, LinesPanel
from grpo_tui.widgets.notice import Notice
from grpo_tui.widgets.runs import RunsPanel
from grpo_tui.widgets.sources import (
    CheckpointsSource,
    CompletionSource,
    ConsoleSource,
    RolloutsSource,
    TrainSource,
)
from grpo_tui.widgets.stage_bar import StageBar

CHARTS = (
    ("reward", "reward"),
    ("loss", "loss"),
    ("completions/mean_length", "length"),
    ("grad_norm", "grad"),
    ("frac_reward_zero_std", "zero"),
    ("entropy", "entropy"),
)
"""Metric and id of each chart; smaller terminals show the first four, or two."""
COMPACT_TABS = frozenset({3, 4})
"""Tabs of the log panel that have panels of their own where there is room."""
FILTER_LIVES = "filter"


class HomeScreen(Screen[None]):
    """Composes the panels, gives them the tick, and chooses what fits."""

    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (104, "-medium"), (170, "-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall"), (50, "-high")]  # noqa: RUF012
    ALLOW_IN_MAXIMIZED_VIEW = "HeaderBar,KeyBar"
    BINDINGS: ClassVar = [
        Binding(action.key, f"app.act('{action.id}')", action.label, id=action.id, show=False) for action in ACTIONS
    ]

    def __init__(self, store: Store, actions: tuple[Action, ...] = ACTIONS) -> None:
        super().__init__()
        self.store = store
        self.registry = actions
        self._noticed: bool | None = None

    def compose(self) -> ComposeResult:
        store = self.store
        yield HeaderBar(store, id="header")
        yield Notice(store, id="notice")
        with Horizontal(id="body"):
            with Vertical(id="left"):
                yield RunsPanel(store, id="runs")
                yield LinesPanel(store, [CheckpointsSource(store)], id="checkpoints")
            with Vertical(id="right"):
                yield ErrorPanel(store, id="error")
                with Container(id="charts"):
                    for metric, name in CHARTS:
                        yield MetricChart(store, metric, id=f"chart-{name}")
                yield StageBar(store, id="stages")
                yield HealthLine(store, id="health")
                with Container(id="texts"):
                    sources: list[LineSource] = [
                        TrainSource(store), ConsoleSource(store), RolloutsSource(store),
                        CompletionSource(store), CheckpointsSource(store), HealthSource(store),
                    ]  # fmt: skip
                    yield LinesPanel(store, sources, id="log")
                    yield LinesPanel(store, [CompletionSource(store)], id="completion")
        yield GpuPanel(store, id="gpu")
        yield Input(
            id=FILTER_LIVES, placeholder="words in a run's name or state; enter keeps, esc clears", compact=True
        )
        yield KeyBar(store, self.registry, id="keys")

    def on_mount(self) -> None:
        self.tick()

    async def turn_to(self, store: Store) -> None:
        """Show another box. The screen stays: an app without any, even for a moment, breaks Textual's Input."""
        self.minimize()
        self.store, self._noticed = store, None
        await self.recompose()
        self.tick()

    def tick(self) -> None:
        """Let every panel look at the store."""
        if not self.is_mounted or not self.query(Notice):  # not composed yet, or being taken down
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
        for widget in self.query("HeaderBar, Notice, .panel, StageBar, HealthLine, KeyBar"):
            widget.tick()  # type: ignore[attr-defined]

    @staticmethod
    def _set_height(widget: Widget, height: int) -> None:
        if widget.styles.height is None or widget.styles.height.value != height:
            widget.styles.height = height

    def action_log_tab(self, index: int) -> None:
        """A click on a tab in the log panel's frame."""
        self.query_one("#log", LinesPanel).show_tab(int(index))

    def on_health_line_opened(self) -> None:
        """The whole of it is a tab of the log panel."""
        log = self.query_one("#log", LinesPanel)
        log.show_tab(next(at for at, source in enumerate(log.sources) if isinstance(source, HealthSource)))

    # zoom ----------------------------------------------------------------------------------------------

    def zoom(self) -> None:
        """Fill the screen with the focused panel, or give it back."""
        if self.maximized is not None:
            self.minimize()
        elif self.focused is not None and self.focused.has_class("panel"):
            self.maximize(self.focused, container=False)
        self.call_after_refresh(self.tick)

    def back(self) -> bool:
        """Leave the zoom, the filter, or a scrolled log; False when there was nothing to leave."""
        runs = self.query_one(RunsPanel)
        if self.maximized is not None:
            self.minimize()
            self.call_after_refresh(self.tick)
            return True
        if runs.filter:
            runs.filter = ""
            self.query_one("#filter", Input).value = ""
            self.tick()
            return True
        return False

    def smooth(self) -> bool:
        """Turn the moving average of the curves on or off."""
        charts = list(self.query(MetricChart))
        smoothed = not charts[0].smoothed
        for chart in charts:
            chart.smoothed = smoothed
            chart.refresh()
        return smoothed

    # filter --------------------------------------------------------------------------------------------

    def ask_filter(self) -> None:
        """Show the filter line."""
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
        runs.call_later(runs.choose_a_shown_one)  # from its own hand: Textual ends a message's way at its sender

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
