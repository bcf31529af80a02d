"""The crosshair of the charts view, the range shown, and the events that the crosshair can be put on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from grpo_tui.kit.desk import Desk, OpenLine, OpenStep
from grpo_tui.model.chart_events import ChartEvents, worst_of
from grpo_tui.model.curves import Curves, Window
from grpo_tui.model.formatting import metric_value
from grpo_tui.model.run_events import RunEvent
from grpo_tui.model.run_logs import log_path
from grpo_tui.views.view import ViewScreen
from grpo_tui.widgets.chart_mouse import ChartMouse
from remote.protocol import RemoteError
from remote.protocol.index import MAX_WIDTH
from remote.protocol.rows import UNREADABLE

ZOOM = 0.5
PAN = 0.25


class CrosshairScreen(ViewScreen):
    """A view with one crosshair and one range for all its charts."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.view = desk.charts
        self.events = ChartEvents()
        self.chosen: list[RunEvent] = []
        """The events that the crosshair was put on; enter opens their row."""

    @property
    def curves(self) -> Curves | None:
        return self.store.curves.get("charts")

    @property
    def crosshair_step(self) -> int | None:
        """The step at the crosshair; None without a crosshair."""
        raise NotImplementedError

    def _ends(self) -> tuple[float, float] | None:
        curves = self.curves
        return curves.ends if curves is not None and curves.curves else None

    def action_move_crosshair(self, by: int) -> None:
        """Move the crosshair by columns of the charts; the first press puts it at the newest step."""
        curves, ends = self.curves, self._ends()
        if curves is None or ends is None:
            return
        at = self.view.crosshair
        if at is None:
            self.set_crosshair(ends[1])
            return
        x = at + by * (ends[1] - ends[0]) / max(1, curves.width)
        beside = self.beside_crosshair(by)
        if beside is not None:  # at least to the next row
            x = max(x, beside) if by > 0 else min(x, beside)
        elif self.view.window.x == "step" and abs(x - at) < 1:
            x = at + (1 if by > 0 else -1)
        self.set_crosshair(x)

    def action_step_crosshair(self, by: int) -> None:
        """Move the crosshair by one logged step; the first press puts it at the newest one."""
        curves, ends, at = self.curves, self._ends(), self.view.crosshair
        if curves is None or ends is None:
            return
        beside = self.beside_crosshair(by)
        if at is None:
            beside = ends[1]
        elif beside is None:  # its row is not known yet: by the usual distance
            beside = at + by * curves.spacing
        self.set_crosshair(beside)

    def beside_crosshair(self, by: int) -> float | None:
        """The x of the row before (-1) or after (+1) the one at the crosshair, itself at an end; None if unknown."""
        raise NotImplementedError

    def go_to_step(self, step: int) -> None:
        """Put the crosshair on a step; if it is not in the range, all of the run is shown."""
        curves, ends = self.curves, self._ends()
        if curves is None or ends is None or curves.first is None or curves.last is None:
            self.view.crosshair = float(step) if self.view.window.x == "step" else None
            return
        x = curves.x_of_step(step)
        if x is None:
            self.app.warn(f"step {step:,} is not in this range")
            return
        x = min(curves.last, max(curves.first, x))
        if not ends[0] <= x <= ends[1]:
            self.view.window = self.view.window.whole()
        self.view.crosshair, self.chosen = x, []
        self.tick()

    def action_go_to_extreme(self, highest: bool) -> None:
        """Put the crosshair on the highest or lowest value that a chart shows."""
        curves, ends, metric = self.curves, self._ends(), self.metric
        curve = curves.curves.get(metric) if curves is not None else None
        marks = [mark for mark in curve.marks if ends and ends[0] <= mark.x <= ends[1]] if curve is not None else []
        if curves is None or ends is None:
            self.app.warn("no curve is shown yet")
            return
        if not marks:
            hint = f"; {self.app.key('toggle_metric')} on it in the list shows it"
            self.app.warn(f"{metric} is not in a chart{hint}" if metric else "no metric is under the cursor")
            return
        best = max(marks, key=lambda mark: mark.high) if highest else min(marks, key=lambda mark: mark.low)
        half = (ends[1] - ends[0]) / max(1, curves.width) / 2
        place = Place(curves.run, metric, curves.axis, best.x - half, best.x + half, highest)
        self.set_crosshair(best.x)
        self.app.work("extreme", partial(go_to_extreme, self.app, place, self.set_crosshair))

    @property
    def metric(self) -> str:
        """The metric of the focused chart, else the one under the cursor."""
        raise NotImplementedError

    def set_crosshair(self, x: float | None) -> None:
        """Put the crosshair at an x of the run, within the range shown."""
        ends = self._ends()
        if x is not None and ends is not None:
            x = min(ends[1], max(ends[0], x))
            x = round(x) if self.view.window.x == "step" else x  # the box says where its row is
        self.view.crosshair, self.chosen = x, []
        self.tick()

    def action_choose_event(self, by: int) -> None:
        """Put the crosshair on the next (+1) or previous (-1) events of the range shown; at first, on the last ones."""
        at = next((one.x for one in self.events.placed if one.event in self.chosen), self.view.crosshair)
        if found := self.events.beside(at, by):  # the crosshair is on the row that is nearest to the event
            self._choose(found[0].x, [one.event for one in found])
        else:
            other = f"{'later' if by > 0 else 'earlier'} " if self.events.placed else ""
            self.app.warn(f"no {other}event in this range")

    def _choose(self, x: float, events: list[RunEvent]) -> None:
        self.set_crosshair(x)
        self.chosen = events
        self.tick()

    def action_open_at_crosshair(self) -> None:
        """Open the completions of the step at the crosshair, or the row of the event it was put on."""
        event = worst_of(self.chosen) if self.chosen else None
        if event is not None and event.offset is not None and self.curves is not None:
            self.app.post_message(OpenLine(log_path(self.curves.run, "events"), event.offset))
        elif event is not None:
            self.app.post_message(OpenStep(event.step, event.evaluation))
        else:
            self.app.post_message(OpenStep(self.crosshair_step))

    def action_zoom_range(self, factor: float, center: float | None = None) -> None:
        """Zoom about the crosshair, else about the middle; not wider than the run, not closer than two steps."""
        curves, ends = self.curves, self._ends()
        if curves is None or ends is None or curves.first is None or curves.last is None:
            return
        if center is None:
            center = self.view.crosshair if self.view.crosshair is not None else (ends[0] + ends[1]) / 2
        window = self.view.window.zoomed(ends, min(ends[1], max(ends[0], center)), factor)
        low, high = max(curves.first, window.low or 0.0), min(curves.last, window.high or 0.0)
        if self.view.window.x == "step" and high - low < 2 and factor < 1:
            return
        everything = low <= curves.first and high >= curves.last
        self._show(window.whole() if everything else replace(window, low=low, high=high))

    def action_pan(self, direction: int) -> None:
        """Move the range by a quarter of its width, within the run."""
        curves, ends = self.curves, self._ends()
        if curves is None or ends is None or curves.first is None or curves.last is None:
            return
        room = (curves.first - ends[0]) if direction < 0 else (curves.last - ends[1])
        by = direction * min(PAN * (ends[1] - ends[0]), abs(room))
        if by:
            self._show(replace(self.view.window, low=ends[0] + by, high=ends[1] + by, span=None))

    def action_show_all(self) -> None:
        """Show the whole run."""
        self._show(self.view.window.whole())

    def action_follow(self) -> None:
        """Follow the newest step.

        The range keeps its width.
        """
        if (ends := self._ends()) is not None and not self.view.window.follows:
            self._show(self.view.window.following(ends))

    def _show(self, window: Window) -> None:
        self.view.window = window
        self.tick()

    def on_chart_mouse_pointed(self, event: ChartMouse.Pointed) -> None:
        if event.events:
            first = event.events[0]
            self._choose(next((one.x for one in self.events.placed if one.event is first), event.x), [*event.events])
        else:
            self.set_crosshair(event.x)

    def on_chart_mouse_scrolled(self, event: ChartMouse.Scrolled) -> None:
        self.action_zoom_range(ZOOM if event.by > 0 else 1 / ZOOM, event.x)

    def on_chart_mouse_dragged(self, event: ChartMouse.Dragged) -> None:
        is_close = self.view.window.x == "step" and event.high - event.low < 2
        if not is_close:
            self._show(replace(self.view.window, low=event.low, high=event.high, span=None))


MOST_REQUESTS = 4
FINEST = {"step": 0.5, "tokens": 0.5, "time": 1e-3, "seconds": 1e-3}
"""A range of this width has one row."""


@dataclass(frozen=True)
class Place:
    """A range of an axis that has the highest, or lowest, value of a metric."""

    run: str
    metric: str
    axis: str
    low: float
    high: float
    is_highest: bool


async def go_to_extreme(app: Desk, place: Place, go: Callable[[float], None]) -> None:
    """Call ``go`` with the x of the row, and say which metric has which value there."""
    low, high = place.low, place.high
    value = math.nan
    try:
        for _ in range(MOST_REQUESTS):  # each narrows the range to one of MAX_WIDTH columns
            reply = await app.request(
                "series", timeout=30.0, run=place.run, metrics=[place.metric], x=place.axis, low=low, high=high,
                width=MAX_WIDTH, smoothing=0,
            )  # fmt: skip
            (row,) = reply["series"]
            if UNREADABLE in row:
                return
            columns = row["columns"]
            found = [i for i in range(MAX_WIDTH) if columns.count[i]]
            if not found:
                return
            values = columns.max if place.is_highest else columns.min
            best = (max if place.is_highest else min)(found, key=values.__getitem__)
            value = values[best]
            one = (high - low) / MAX_WIDTH
            low, high = low + best * one, low + (best + 1) * one
            if len(found) == 1 or one < FINEST[place.axis]:
                break
    except RemoteError as error:
        app.warn(error.message)
        return
    go((low + high) / 2)
    end = "highest" if place.is_highest else "lowest"
    app.receipt(f"{place.metric}: {end} value {metric_value(value)}")
