"""Charts: any of the run's metrics over steps, tokens, time or cost, with one crosshair and one range for all."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from grpo_train.history.query import QueryError
from grpo_train.run_dir.files import to_float
from grpo_tui.background import refresh_metrics, refresh_step
from grpo_tui.box.charts import AXIS_NAMES, CHARTS, MOST_SHOWN, ChartsView, is_flat, smoothing_label, worst_of
from grpo_tui.box.curves import STEP
from grpo_tui.box.events import RunEvent
from grpo_tui.box.formatting import compact_number
from grpo_tui.box.log import log_path
from grpo_tui.box.store import Store
from grpo_tui.kit.chart import CurveChart
from grpo_tui.kit.desk import Desk, OpenLine, OpenStep
from grpo_tui.kit.lists import LinesPanel
from grpo_tui.kit.panel import Line
from grpo_tui.kit.plot import axis_label, only_line
from grpo_tui.kit.save import SavedRange, save_charts
from grpo_tui.kit.svg import Drawing, charts_svg
from grpo_tui.views.charts.crosshair import CrosshairScreen
from grpo_tui.views.charts.model import matches
from grpo_tui.views.charts.panels import ConfigPage, MetricsPanel, StepSource
from grpo_tui.views.plots import COLUMNS, bindings_with_vi

ROWS, SHORT_ROWS = {"-wide": 3, "-medium": 3, "-narrow": 2}, {"-wide": 1, "-medium": 2, "-narrow": 2}
"""Rows of charts in a terminal of each width, also in one of few lines; …"""
TINY = 20
"""… in one of fewer lines than this, one row."""
MOST_COLUMNS, LEAST_WIDE, LEAST_HIGH = 4, 24, 4
"""The most columns or rows of charts that can be chosen; the least cells and lines of each chart."""


class AboutCharts(Line):
    """One line: axis, smoothing, range, how many metrics."""

    def __init__(self, store: Store, view: ChartsView, screen: ChartsScreen, *, id: str) -> None:
        super().__init__(store, id=id)
        self.view, self._charts = view, screen

    def state(self) -> object:
        return (self.render(), self.size.width)

    def render(self) -> Content:
        """As much as there is room for: the page is never cut."""
        for shorter in (0, 1):
            text, count = self._said(shorter)
            if (gap := self.size.width - 2 - text.cell_length - count.cell_length) > 0:
                return text + Content(" " * gap) + count
        text, count = self._said(2)
        return text + Content("   ") + count

    def _said(self, shorter: int) -> tuple[Content, Content]:
        """What is at the left and at the right: 1 = without the number of metrics, 2 = nor what the range is."""
        view, curves = self.view, self._charts.curves
        parts = [("x", AXIS_NAMES[view.window.x])]
        first = next(iter(curves.curves.values()), None) if curves is not None else None
        over = curves.mean_over(first) if curves is not None and first is not None else 0
        parts.append(("line", smoothing_label(view.smoothing, over)))
        if curves is not None and curves.curves:
            ends = [round(end) if view.window.x == "step" else end for end in curves.ends]
            low, high = (axis_label(end, view.window.x, self.store.price_per_hour) for end in ends)
            which = "all, " if view.window == view.window.whole() else ""
            how = f" ({which}following)" if view.window.follows and shorter < 2 else ""
            parts.append(("range", f"{low}–{high}{how}"))
        text = Content.from_markup("[bold $primary]charts[/]")
        for name, value in parts:
            text += Content.from_markup("   [$text-muted]$name:[/] $value", name=name, value=value)
        if view.columns or view.rows:
            text += Content.from_markup("   [$text-muted]grid:[/] $size", size="{} × {}".format(*self._charts.grid))
        rows = self.store.metrics.rows
        if self._charts.saving:
            text += Content.from_markup("   [$warning]$saving[/]", saving=self._charts.saving)
        page, pages = self.view.page + 1, self._charts.page_count
        changing = sum(not is_flat(row) for row in rows)
        counts = [] if shorter else [f"{compact_number(changing)} metrics, {len(self._charts.drawn)} shown"]
        counts += [f"page {page}/{pages} (pgdn)"] if pages > 1 else []
        return text, Content.from_markup("[$text-muted]$counts[/]", counts=", ".join(counts))


class ChartsScreen(CrosshairScreen):
    """The charts of the selected run."""

    NAME = "charts"
    MAIN = "#metrics"
    FILTER_HINT = "part of a name, a glob with *, or ~regex; enter applies, esc clears"
    BINDINGS: ClassVar = bindings_with_vi("charts", {"h": "crosshair_left", "l": "crosshair_right"})

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._asked: tuple[str, float | None, str, tuple[str, ...]] | None = None
        self._run = ""
        self._slots = 0
        self.page_count = 1
        self.grid = (1, 1)
        """Columns and rows of charts."""
        self._had_crosshair = False

    def panels(self) -> Iterable[Widget]:
        store = self.store
        does = {"open_rollouts": "completions", "open_row": "row", "copy_step": "copies"}
        keys = tuple(f"{self.app.key(name)} {what}" for name, what in does.items())
        self.step = StepSource(store, lambda: self.curves, self._events_at_crosshair, self._config, keys)
        below = LinesPanel(store, [self.step, ConfigPage(store, self.app.runs, self.view)], id="step")
        below.active = 1
        below.can_focus = False  # its arrow keys are the crosshair's
        grid = Container(
            *(
                CurveChart(
                    store, lambda: self.curves, id=f"slot-{slot}",
                    classes=f"panel chart -color-{CHARTS[slot % len(CHARTS)].id}",
                )
                for slot in range(MOST_SHOWN)
            ),
            id="grid",
        )  # fmt: skip
        yield AboutCharts(store, self.view, self, id="about")
        yield Horizontal(
            MetricsPanel(store, self.view, lambda: self.curves, self._row_at_crosshair, id="metrics"),
            Vertical(grid, below, id="right"),
            id="body",
        )

    def _row_at_crosshair(self) -> Mapping[str, Any] | None:
        return self.step.row if self.view.crosshair is not None else None

    def _events_at_crosshair(self) -> tuple[list[RunEvent], str]:
        """The events at the crosshair or in the ten steps before it, and the key that opens the row of a chosen one."""
        if self.chosen:
            return self.chosen, self.app.key("open_rollouts")
        shown = self.step.shown
        if shown is None:
            return [], ""
        return self.events.between(shown.get("before_step", shown["step"]), shown["step"]), ""

    def _config(self, key: str) -> Any:
        return self.store.config.get(key)

    def box_changed(self) -> None:
        self.view.crosshair, self.chosen = None, []

    def update(self) -> None:
        """Choose the charts that fit, and what their curves are to show."""
        self._lay_out()
        if (has_crosshair := self.view.crosshair is not None) != self._had_crosshair:
            self._had_crosshair = has_crosshair
            self.query_one("#step", LinesPanel).show_tab(not has_crosshair)
        logged = self._logged
        if self.view.filter:
            logged = {name: row for name, row in logged.items() if matches(name, self.view.filter)} or logged
        pages = self.view.pages(logged, self._slots)
        self.view.page = min(self.view.page, len(pages) - 1)
        self.page_count = len(pages)
        charts = self.show_charts(pages[self.view.page])
        row = self._row_at_crosshair()
        spikes = self._spikes() if self.view.window == self.view.window.whole() else {}
        self.events.update(self.store, self.curves)
        for chart in charts:
            chart.value = to_float(row.get(chart.metric)) if row is not None else None
            chart.highest = spikes.get(chart.metric)
            chart.events = self.events
            chart.rules = [rule for rule in self.app.options.alarms if rule.metric == chart.metric]
            chart.has_legend = chart is charts[0] or chart is self.maximized
        if charts and not self.drawn:
            charts[0].display = True  # which says why there is none
        if (curves := self.curves) is not None:
            if self._run not in (curves.run, ""):  # a range of steps says nothing about another run
                self.view.window, self.view.crosshair, self.chosen = self.view.window.whole(), None, []
                self.show_step(None)
            self._run = curves.run
            if curves.window != self.view.window:
                curves.window = self.view.window
                curves.version += 1
            metrics = (*self.drawn, *([STEP] if self.view.window.x != "step" else ()))  # of which events have one
            curves.smoothing = self.view.smoothing
            curves.show(metrics, self.pixel_columns)

    def _lay_out(self) -> None:
        """Choose the columns and rows of charts: those that the user asked for, as far as there is room."""
        width, view, grid = self.width_class, self.view, self.query_one("#grid")
        rows = 1 if self.size.height < TINY else (SHORT_ROWS if self.has_class("-short") else ROWS)[width]
        columns = min(view.columns, self._most(grid.size.width, LEAST_WIDE)) or COLUMNS[width]
        rows = min(view.rows, self._most(grid.size.height, LEAST_HIGH)) or rows
        self.grid, self._slots = (columns, rows), min(MOST_SHOWN, columns * rows)
        grid.styles.grid_size_columns = columns

    @staticmethod
    def _most(room: int, least: int) -> int:
        return max(1, min(MOST_COLUMNS, room // least))

    def _spikes(self) -> dict[str, tuple[float, int]]:
        """The metrics in the charts with a highest value far above the usual, and its step."""
        curves = self.curves.curves if self.curves is not None else {}
        found = {}
        for row in self.store.metrics.rows:
            lowest, highest, step = (to_float(row.get(key)) for key in ("min", "max", "max_step"))
            curve = curves.get(str(row["name"]))
            if highest is None or step is None or lowest is None or lowest < 0 or curve is None:
                continue  # of a metric about 0, every value is many times the usual one
            if curve.times_usual(highest):
                found[str(row["name"])] = (highest, round(step))
        return found

    def request_data(self) -> None:
        """Request the list of metrics, and the row at the crosshair."""
        app, store, curves = self.app, self.store, self.curves
        if curves is None:
            return
        if store.metrics.due(is_live=store.run is not None and store.run.is_live):
            app.work("metrics", partial(refresh_metrics, app, curves.run, store.metrics))
        wanted = (curves.run, self.view.crosshair, self.view.window.x, tuple(self.drawn))
        if wanted != self._asked:
            self._asked = wanted
            app.work("step", partial(refresh_step, app, *wanted, self.show_step, self.show_problems))

    # the row at the crosshair -------------------------------------------------------------------------

    def show_step(self, reply: Mapping[str, Any] | None, problem: str = "", asked: float | None = None) -> None:
        """Show the row that is nearest to the x that was ``asked``; the crosshair moves onto it."""
        self.step.shown, self.step.problem = reply, problem
        curves, view = self.curves, self.view
        if reply is not None and curves is not None and asked == view.crosshair and reply["state"] == "whole":
            view.crosshair = reply["x"]
            self._asked = (curves.run, view.crosshair, view.window.x, tuple(self.drawn))
        for panel in self.query("#step").results(LinesPanel):  # none while the view is being composed
            panel.tick()

    def show_problems(self, reply: Mapping[str, Any] | None) -> None:
        """Show which problems of the step at the crosshair changed most."""
        self.step.problems = reply
        for panel in self.query("#step").results(LinesPanel):
            panel.tick()

    def set_crosshair(self, x: float | None) -> None:
        if x is None:
            self.show_step(None)
        super().set_crosshair(x)

    def beside_crosshair(self, by: int) -> float | None:
        at, shown = self.view.crosshair, self.step.shown
        if shown is None or shown["x"] != at:
            return None
        beside: float | None = shown["next" if by > 0 else "previous"]
        return at if beside is None else beside

    @property
    def crosshair_step(self) -> int | None:
        """The step at the crosshair; None without a crosshair."""
        at = self.view.crosshair
        if at is None or self.view.window.x == "step":
            return None if at is None else round(at)
        return round(self.step.shown["step"]) if self.step.shown is not None else None

    def action_open_at_crosshair(self) -> None:
        """Open the completions of the step at the crosshair, or the row of the event it was put on."""
        event = worst_of(self.chosen) if self.chosen else None
        if event is not None and event.offset is not None and self.curves is not None:
            self.app.post_message(OpenLine(log_path(self.curves.run, "events"), event.offset))
        elif event is not None:
            self.app.post_message(OpenStep(event.step, event.evaluation))
        else:
            self.app.post_message(OpenStep(self.crosshair_step))

    def action_open_row(self) -> None:
        """Open the row of the log at the crosshair, as it was written."""
        if self._row_at_crosshair() is None or self.step.shown is None or self.curves is None:
            self.app.warn("no step is under the crosshair yet; ← → move it")
        else:
            self.app.post_message(OpenLine(log_path(self.curves.run, "train_log"), self.step.shown["offset"]))

    # metrics -------------------------------------------------------------------------------------------

    def on_metrics_panel_toggled(self, event: MetricsPanel.Toggled) -> None:
        self.action_toggle_metric(event.name)

    def action_toggle_metric(self, name: str = "") -> None:
        """Show or hide the metric under the cursor."""
        name = name or self.query_one(MetricsPanel).current
        names = self._logged
        is_out_of_sight = name in self.view.shown and name not in self.drawn
        if name and not is_out_of_sight and not self.view.toggle(name, names):
            self.app.warn(f"{MOST_SHOWN} charts are shown; hide one first")
        while name in self.view.shown[self._slots :]:  # into the last chart that the terminal has room for
            self.view.move(name, -1, names)
        self.tick()

    def show_metric(self, name: str) -> None:
        """Show a metric in the first chart, under the cursor."""
        self.view.put_first(name, self._logged)
        self.view.page = 0
        self.tick()
        self.call_after_refresh(lambda: self.query_one(MetricsPanel).go_to(name))

    def action_move_metric(self, by: int) -> None:
        """Move the metric under the cursor in the order of the charts."""
        self.view.move(self.query_one(MetricsPanel).current, by, self._logged)
        self.tick()

    def action_turn_page(self, by: int) -> None:
        """Show further metrics."""
        self.view.page = max(0, self.view.page + by)
        self.tick()

    def action_turn_columns(self) -> None:
        """Draw the charts in one column, in two, … or as the terminal has room."""
        self.view.columns = (self.view.columns + 1) % (self._most(self.query_one("#grid").size.width, LEAST_WIDE) + 1)
        self.tick()

    def action_turn_rows(self) -> None:
        """Draw the charts in one row, in two, … or as the terminal has room."""
        self.view.rows = (self.view.rows + 1) % (self._most(self.query_one("#grid").size.height, LEAST_HIGH) + 1)
        self.tick()

    def action_turn_tab(self) -> None:
        """Show the configuration below the charts, or what changed at the crosshair."""
        self.query_one("#step", LinesPanel).action_browse(1)

    @property
    def _logged(self) -> dict[str, Mapping[str, Any]]:
        return {str(row["name"]): row for row in self.store.metrics.rows}

    @property
    def chosen_metric(self) -> str:
        """The metric under the cursor."""
        return self.query_one(MetricsPanel).current

    @property
    def has_tokens(self) -> bool:
        logged = {str(row["name"]) for row in self.store.metrics.rows}
        return not logged or "num_tokens" in logged

    def action_copy(self) -> None:
        """Copy what was logged at the crosshair; without one, the metric under the cursor and its last value."""
        if (row := self._row_at_crosshair()) is not None and self.step.shown is not None:
            self.app.copy(json.dumps(row, ensure_ascii=False), f"step {self.step.shown['step']:,.0f} as it was logged")
        elif name := self.metric:
            self.app.copy(f"{name} {self.query_one(MetricsPanel).value(name)}", f"the last {name}")

    def action_export(self) -> None:
        """Save the steps shown as CSV and the charts as SVG and PNG, on this machine.

        In full screen, that chart alone.
        """
        app, curves, view = self.app, self.curves, self.view
        if self.saving:
            app.warn(f"{self.saving}: an export is in progress")
            return
        if curves is None or not curves.curves or not self.drawn:
            app.warn("nothing to save: no chart is shown yet")
            return
        low, high = curves.ends
        names, x, price = self.saved_metrics, view.x, self.store.price_per_hour
        drawings = [
            Drawing(
                name, [only_line(curve, curves.mean_over(curve))], name in view.logarithmic,
                CHARTS[slot % len(CHARTS)].light, curve.last, curve.gaps, self.events.placed,
            )
            for slot, name in enumerate(self.drawn)
            if name in names and (curve := curves.curves.get(name)) is not None
        ]  # fmt: skip
        first, last = (axis_label(end, x, price) for end in (low, high))
        svg = charts_svg(f"{curves.run}, {AXIS_NAMES[x]} {first}–{last}", drawings, (low, high), x, price)
        metrics = tuple(names) if x != "tokens" else tuple(dict.fromkeys(["num_tokens", *names]))
        app.work(
            "export", partial(save_charts, app, SavedRange(curves.run, metrics, x, low, high), svg, self.say_saving)
        )

    def action_zoom(self) -> None:
        """Show a chart in full screen.

        The focused one, else that of the metric under the cursor.
        """
        if self.maximized is not None:
            self.minimize()
        else:
            name = self.query_one(MetricsPanel).current
            charts = [chart for chart in self.query(CurveChart) if chart.display]
            named = [chart for chart in charts if chart is self.focused or chart.metric == name]
            if charts:
                self.maximize((named or charts)[0], container=False)
        self.call_after_refresh(self.tick)

    def back(self) -> bool:
        """One step out: the full-screen chart, the filter, the crosshair; returns False if there was none."""
        if self.view.filter and not self.is_asking and self.maximized is None:
            self.view.filter = ""
            self.tick()
            return True
        return super().back()

    @property
    def filter(self) -> str:
        return self.view.filter

    def set_filter(self, text: str) -> None:
        """Apply a filter; a regular expression with a mistake is pointed to, and the last filter stays."""
        mistake = None
        try:
            matches("", text)
            self.view.filter = text
        except QueryError as error:
            mistake = error
        self.show_mistake(mistake)
        self.query_one(MetricsPanel).tick()
