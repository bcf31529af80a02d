"""The range of the charts view, and the extremes and events that its crosshair can be put on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from grpo_train.run_dir.display import metric_text
from grpo_tui.box.charts import ChartEvents, ChartsView
from grpo_tui.box.curves import Curves, Window
from grpo_tui.box.events import RunEvent
from grpo_tui.kit.chart import ChartMouse
from grpo_tui.kit.desk import Desk
from grpo_tui.views.plots import PlotScreen
from remote.protocol import RemoteError
from remote.protocol.logs import MAX_WIDTH
from remote.protocol.rows import UNREADABLE

ZOOM = 0.5
PAN = 0.25


class CrosshairScreen(PlotScreen):
    """A view of one run, with one range for all its charts."""

    view: ChartsView

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, desk.charts)
        self.events = ChartEvents()
        self.chosen: list[RunEvent] = []
        """The events that the crosshair was put on; enter opens their row."""
        self._changes: Sequence[Mapping[str, Any]] = ()
        """Rows of the last answer to ``level_changes`` …"""
        self._changes_of: object = None
        """… what was asked …"""
        self._change = 0
        """… and the one that the crosshair was put on."""

    @property
    def curves(self) -> Curves | None:
        return self.store.curves.get("charts")

    @property
    def ends(self) -> tuple[float, float] | None:
        curves = self.curves
        return curves.ends if curves is not None and curves.curves else None

    def go_to_step(self, step: int) -> None:
        """Put the crosshair on a step; if it is not in the range, all of the run is shown."""
        curves, ends = self.curves, self.ends
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
        curves, ends, metric = self.curves, self.ends, self.metric
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
        place = Extreme(curves.run, metric, curves.axis, best.x - half, best.x + half, highest)
        self.set_crosshair(best.x)
        self.app.work("extreme", partial(go_to_extreme, self.app, place, self.set_crosshair))

    def action_go_to_change(self, rises: bool) -> None:
        """Put the crosshair on the largest drop, or rise, of a metric in the range shown; again, on the next one."""
        curves, metric = self.curves, self.metric
        if curves is None or self.ends is None or not metric:
            self.app.warn("no curve is shown yet" if metric else "no metric is under the cursor")
            return
        low, high = (None, None) if self.view.window == self.view.window.whole() else self.ends
        wanted = (curves.run, metric, curves.axis, low, high, rises)
        if wanted == self._changes_of and self._changes:
            self._show_change(self._change + 1)
        else:
            self.app.work("change", partial(find_changes, self.app, *wanted, self._take_changes))

    def _take_changes(self, wanted: object, levels: Sequence[Mapping[str, Any]]) -> None:
        self._changes_of, self._changes = wanted, levels
        self._show_change(0)

    def _show_change(self, number: int) -> None:
        self._change = number % len(self._changes)
        level = self._changes[self._change]
        self.set_crosshair(level["x"])
        kind = "rise" if level["after"] > level["before"] else "drop"
        self.app.receipt(
            f"{self.metric}: {kind} {self._change + 1} of {len(self._changes)}, at step {level['step']:,.0f}: "
            f"{metric_text(self.metric, level['before'])} → {metric_text(self.metric, level['after'])} (medians)"
        )

    def set_crosshair(self, x: float | None) -> None:
        """Put the crosshair at an x, within the range shown; the box says where its row is."""
        self.chosen = []
        super().set_crosshair(x)

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

    def action_zoom_range(self, factor: float, center: float | None = None) -> None:
        """Zoom about the crosshair, else about the middle; not wider than the run, not closer than two steps."""
        curves, ends = self.curves, self.ends
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
        curves, ends = self.curves, self.ends
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
        if (ends := self.ends) is not None and not self.view.window.follows:
            self._show(self.view.window.following(ends))

    def _show(self, window: Window) -> None:
        self.view.window = window
        self.tick()

    def point(self, x: float, events: Sequence[RunEvent]) -> None:
        if events:
            self._choose(next((one.x for one in self.events.placed if one.event is events[0]), x), [*events])
        else:
            self.set_crosshair(x)

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
class Extreme:
    """A range of an axis that has the highest, or lowest, value of a metric."""

    run: str
    metric: str
    axis: str
    low: float
    high: float
    is_highest: bool


async def find_changes(
    app: Desk,
    run: str,
    metric: str,
    axis: str,
    low: float | None,
    high: float | None,
    rises: bool,
    take: Callable[[object, Sequence[Mapping[str, Any]]], None],
) -> None:
    """Call ``take`` with what was asked and the changes; say that there are none."""
    try:
        reply = await app.request(
            "level_changes", reply_s=30.0, run=run, metric=metric, x=axis, low=low, high=high, rises=rises
        )
    except RemoteError as error:
        app.warn(error.message)
        return
    if levels := [row for row in reply["levels"] if UNREADABLE not in row]:
        take((run, metric, axis, low, high, rises), levels)
    else:
        app.warn(f"{metric} has no {'rise' if rises else 'drop'} beyond its noise in this range")


async def go_to_extreme(app: Desk, place: Extreme, go: Callable[[float], None]) -> None:
    """Call ``go`` with the x of the row, and say which metric has which value there."""
    low, high = place.low, place.high
    value = math.nan
    try:
        for _ in range(MOST_REQUESTS):  # each narrows the range to one of MAX_WIDTH columns
            reply = await app.request(
                "series", reply_s=30.0, run=place.run, metrics=[place.metric], x=place.axis, low=low, high=high,
                width=MAX_WIDTH,
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
    app.receipt(f"{place.metric}: {end} value {metric_text(place.metric, value)}")
