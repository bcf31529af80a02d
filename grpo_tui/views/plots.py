"""Base of the views with charts: one crosshair, one x axis and one smoothing for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from textual.binding import Binding

from grpo_tui.box.charts import PlotView
from grpo_tui.box.curves import Curves
from grpo_tui.box.events import RunEvent
from grpo_tui.kit.chart import ChartMouse, CurveChart
from grpo_tui.kit.desk import Desk
from grpo_tui.views.view import ViewScreen, bindings_of

COLUMNS = {"-wide": 3, "-medium": 2, "-narrow": 1}
"""Columns of charts that a terminal of each width has room for."""


def bindings_with_vi(view: str, vi: Mapping[str, str]) -> list[Binding | tuple[str, str] | tuple[str, str, str]]:
    """The keys of a view, and those of vi with the actions that they run."""
    return [*bindings_of(view), *[(key, f"vi('{action}', '{key}')") for key, action in vi.items()]]


class PlotScreen(ViewScreen):
    """A view with charts. They have the metrics of :attr:`drawn`, in order."""

    GOES_TO_STEPS = True
    COLUMN: ClassVar = 1
    """Pixel columns by which a press moves the crosshair."""

    def __init__(self, desk: Desk, view: PlotView) -> None:
        super().__init__(desk)
        self.view = view
        self.drawn: list[str] = []
        """The metrics in the charts."""
        self.saving = ""
        """How far an export is; "" without one."""

    # what a view defines -------------------------------------------------------------------------------

    @property
    def curves(self) -> Curves | None:
        """The curves of the run whose steps the crosshair moves by."""
        raise NotImplementedError

    @property
    def ends(self) -> tuple[float, float] | None:
        """First and last x shown; None without a curve."""
        raise NotImplementedError

    @property
    def chosen_metric(self) -> str:
        """The metric that keys are for while no chart is focused."""
        return self.drawn[0] if self.drawn else ""

    @property
    def has_tokens(self) -> bool:
        """Whether the number of tokens is logged."""
        return True

    def beside_crosshair(self, by: int) -> float | None:
        """The x of the row before (-1) or after (+1) the one at the crosshair, itself at an end; None if unknown."""
        return None

    # charts --------------------------------------------------------------------------------------------

    def show_charts(self, metrics: Sequence[str]) -> list[CurveChart]:
        """Give the charts their metrics, scales and the crosshair, and hide the others; returns all of them."""
        self.drawn, view = [*metrics], self.view
        charts = list(self.query(CurveChart))
        for chart, metric in zip(charts, [*metrics, *[""] * len(charts)], strict=False):
            chart.metric, chart.display = metric, bool(metric)
            chart.is_log, chart.is_clipped = metric in view.logarithmic, metric in view.clipped
            chart.crosshair = view.crosshair
        return charts

    @property
    def pixel_columns(self) -> int:
        """Pixel columns of the widest chart."""
        return max((chart.pixel_columns for chart in self.query(CurveChart) if chart.display), default=0)

    @property
    def metric(self) -> str:
        """The metric of the focused chart, else the chosen one."""
        return self.focused.metric if isinstance(self.focused, CurveChart) else self.chosen_metric

    @property
    def saved_metrics(self) -> list[str]:
        """The metrics that an export has: that of the chart in full screen, else all in the charts."""
        return [self.maximized.metric] if isinstance(self.maximized, CurveChart) else self.drawn

    def say_saving(self, text: str) -> None:
        """Show how far an export is."""
        self.saving = text
        self.tick()

    # crosshair -----------------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "vi":
            return self.app.is_free(str(parameters[1]))
        return super().check_action(action, parameters)

    async def action_vi(self, action: str, key: str) -> None:
        """Run an action by a key of vi, unless the user gave the key to another one."""
        await self.app.action_act(action)

    def action_move_crosshair(self, by: int) -> None:
        """Move the crosshair by columns of the charts; the first press puts it at the newest step."""
        ends, at = self.ends, self.view.crosshair
        if ends is None:
            return
        if at is None:
            self.set_crosshair(ends[1])
            return
        x = at + by * (ends[1] - ends[0]) / max(1, self.pixel_columns // self.COLUMN)
        beside = self.beside_crosshair(by)
        if beside is not None:  # at least to the next row
            x = max(x, beside) if by > 0 else min(x, beside)
        elif self.view.x == "step" and abs(x - at) < 1:
            x = at + (1 if by > 0 else -1)
        self.set_crosshair(x)

    def action_step_crosshair(self, by: int) -> None:
        """Move the crosshair by one logged step; the first press puts it at the newest one."""
        curves, ends, at = self.curves, self.ends, self.view.crosshair
        if curves is None or ends is None:
            return
        if at is None:
            self.set_crosshair(ends[1])
            return
        beside = self.beside_crosshair(by)
        self.set_crosshair(at + by * curves.spacing if beside is None else beside)

    def set_crosshair(self, x: float | None) -> None:
        """Put the crosshair at an x, within the range shown, or remove it."""
        if x is not None and (ends := self.ends) is not None:
            x = min(ends[1], max(ends[0], x))
            x = round(x) if self.view.x == "step" else x
        self.view.crosshair = x
        self.tick()

    def point(self, x: float, events: Sequence[RunEvent]) -> None:
        """Put the crosshair where the user pointed, at an x or at the sign of events there."""
        self.set_crosshair(x)

    def on_chart_mouse_pointed(self, event: ChartMouse.Pointed) -> None:
        self.point(event.x, event.events)

    # axes ----------------------------------------------------------------------------------------------

    def action_next_axis(self) -> None:
        """Switch to the next x axis: steps, tokens, time, cost."""
        self.view.next_axis(self.store.price_per_hour is not None, self.has_tokens)
        self.tick()

    def action_smooth(self, by: int) -> None:
        """Draw the values, or a mean of a few or many of them."""
        self.view.smooth(by)
        self.tick()

    def action_toggle_log(self) -> None:
        """Turn the logarithmic axis of a chart on or off."""
        self.view.logarithmic ^= {self.metric}
        self.tick()

    def action_toggle_clip(self) -> None:
        """Clip the y axis of a chart to the 1st to 99th percentile, or show every point."""
        self.view.clipped ^= {self.metric}
        self.tick()

    def back(self) -> bool:
        """One step out: the line for a step, the full-screen panel, the crosshair; returns False if there was none."""
        if self.is_asking:
            self.close_go_to()
        elif self.maximized is not None:
            self.action_zoom()
        elif self.view.crosshair is not None:
            self.set_crosshair(None)
        else:
            return False
        return True
