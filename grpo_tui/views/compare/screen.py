"""The view of two to twelve runs side by side, and its requests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar

from textual.containers import Container, Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget

from grpo_train.run_dir.display import duration
from grpo_tui.background import refresh_metrics
from grpo_tui.box.asking import ENGINE_S
from grpo_tui.box.charts import AXIS_NAMES, DEFAULT, smoothing_label
from grpo_tui.box.curves import Curves
from grpo_tui.box.run_columns import fitting_name, short_names
from grpo_tui.box.store import MetricTable, Store
from grpo_tui.kit.desk import Desk, OpenFlips, SelectRun, ShowView
from grpo_tui.kit.panel import Line
from grpo_tui.kit.save import SavedRange, save_runs
from grpo_tui.kit.svg import Drawing, charts_svg
from grpo_tui.views.compare.chart import CompareChart, legend, line_of
from grpo_tui.views.compare.model import LETTERS, Compared, Comparison, PairedResults, facts_of
from grpo_tui.views.compare.tables import ComparePanel, ConfigSource, EvaluationsSource, StandingSource
from grpo_tui.views.plots import COLUMNS, PlotScreen, bindings_with_vi
from remote.protocol import RemoteError


async def refresh_compared_curves(app: Desk, run: Compared, params: dict[str, Any]) -> None:
    """Request the curves of a compared run."""
    kept_under = run.curves.kept_under
    try:
        reply = await app.request("series", reply_s=60.0, **params)
    except RemoteError as error:
        run.curves.fail(error.message)
        return
    run.curves.take(reply)
    app.kept.keep_curves(kept_under, reply)


async def refresh_compared_facts(app: Desk, run: Compared) -> None:
    """Request the configuration and the evaluations of a compared run."""
    try:
        reply = await app.request("show_run", run=run.name)
    except RemoteError as error:
        run.asking.end("facts", error.message)
        return
    run.facts = await asyncio.to_thread(facts_of, run.name, reply)
    run.facts_recalled_at = None
    run.asking.end("facts")
    app.kept.keep("show_run", {"run": run.name}, reply)


def kept_under(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters under which the laptop keeps a comparison of evaluations."""
    return {name: params[name] for name in ("run", "others", "steps")}


def recall(app: Desk, comparison: Comparison, logged: tuple[str, MetricTable], paired: PairedResults) -> None:
    """Read what is kept of the compared runs, once, where the box has not answered."""
    if not app.kept.has_answers:
        return

    def once(name: str, of: object, show: Callable[[], Awaitable[None]]) -> None:
        if app.kept.is_wanted(name, of):
            app.work(f"kept {name}", show)

    for run in comparison.runs:
        if run.facts is None:
            once(f"facts of {run.name}", run, partial(recall_facts, app, run))
        curves = run.curves
        if not curves.curves and curves.metrics:
            of = (run, curves.window, curves.metrics)
            once(f"curves of {run.name}", of, partial(app.kept.show_curves, curves))
    if not logged[1].rows:
        once("metrics of the pinned run", logged[1], partial(recall_metrics, app, *logged))
    if not app.store.connected and (params := paired.wanted(comparison.pin, comparison.runs)) is not None:
        once("pairs", repr(params), partial(recall_pairs, app, paired, params))


async def recall_facts(app: Desk, run: Compared) -> None:
    """Show the configuration and evaluations that the laptop kept of a run."""
    kept = await app.kept.get("show_run", {"run": run.name})
    if kept is not None and run.facts is None:
        facts = await asyncio.to_thread(facts_of, run.name, kept.answer)
        if run.facts is None:
            run.facts, run.facts_recalled_at = facts, kept.at


async def recall_metrics(app: Desk, run: str, table: MetricTable) -> None:
    """Show the list of metrics that the laptop kept."""
    kept = await app.kept.get("metrics", {"run": run})
    if kept is not None and not table.rows:
        table.recall(kept.answer)


async def recall_pairs(app: Desk, paired: PairedResults, params: dict[str, Any]) -> None:
    """Show the paired comparison that the laptop kept."""
    kept = await app.kept.get("compare_evaluations", kept_under(params))
    if kept is not None:
        paired.recall(kept.answer)


async def refresh_pairs(app: Desk, paired: PairedResults, params: dict[str, Any]) -> None:
    """Request the paired comparison of evaluations."""
    try:
        reply = await app.request("compare_evaluations", reply_s=ENGINE_S, **params)
        paired.answer(reply)
        app.kept.keep("compare_evaluations", kept_under(params), reply)
    except RemoteError as error:
        paired.fail(error.message)


MOST_ROWS = 3
"""Of charts, without the tables."""
MOST_LINES = 11
"""Of the table below everything else."""
WIDTH = 240
"""Pixel columns of each curve. The tables are made from them, too: they must not depend on the terminal."""


class CompareScreen(PlotScreen):
    """The marked runs, compared."""

    NAME = "compare"
    MAIN = "#compare-0"
    COLUMN = 2
    BINDINGS: ClassVar = bindings_with_vi(
        "compare", {"j": "next_run", "k": "previous_run", "h": "compare_left", "l": "compare_right"}
    )

    def __init__(self, desk: Desk) -> None:
        self.comparison = Comparison()
        super().__init__(desk, self.comparison)
        self.paired = PairedResults()
        self.logged: tuple[str, MetricTable] = ("", MetricTable())
        """The pinned run, and the metrics that it logs."""
        self._seen = ("", "")
        """The runs that were highlighted and selected last."""
        self._only_charts = False
        self._sent: list[str] = []
        """Runs that this view asked to select, and that are not selected yet: then, no highlight changes."""

    def panels(self) -> Iterable[Widget]:
        store, comparison = self.store, self.comparison
        self._standing = StandingSource(store, comparison)
        self._config = ConfigSource(store, comparison, self.app.key("all_keys"))
        self._evaluations = EvaluationsSource(store, comparison, self.paired, self.app.key("compare_problems"))
        yield AboutComparison(store, comparison, lambda: self.saving, id="about")
        yield WhatIsMissing(store, id="missing")
        yield Vertical(
            Container(
                *(
                    CompareChart(store, comparison, id=f"compare-{slot}")
                    for slot in range(MOST_ROWS * max(COLUMNS.values()))
                ),
                id="grid",
            ),
            Horizontal(
                ComparePanel(store, [self._config], id="config"),
                ComparePanel(store, [self._evaluations], id="evaluations"),
                id="facts",
            ),
            ComparePanel(store, [self._standing, self._config, self._evaluations], id="standing"),
            id="body",
        )

    def box_changed(self) -> None:
        self.comparison.forget()
        self.paired = PairedResults()

    # what is shown -------------------------------------------------------------------------------------

    def update(self) -> None:
        """Follow the marks; choose the charts that fit."""
        store, comparison = self.store, self.comparison
        comparison.follow(store.marks, {row.name: row for row in store.runs or () if row.name in store.marks})
        self._select_current()
        if self.logged[0] != comparison.pinned:
            self.logged = (comparison.pinned, MetricTable())
        self.query_one("#missing").display = not self.comparison.is_comparing
        self.query_one("#body").display = self.comparison.is_comparing
        about = self.query_one("#about", AboutComparison)
        about.styles.height = len(about.lines(about.size.width - 2))
        rows = 1 if not self._only_charts else MOST_ROWS - 1 if self.has_class("-short") else MOST_ROWS
        slots = rows * COLUMNS[self.width_class]
        names = self._metrics(slots)
        comparison.page %= max(1, -(-len(names) // slots))
        self.show_charts(names[comparison.page * slots :][:slots] if comparison.is_comparing else [])
        comparison.show(self.drawn, WIDTH)
        comparison.columns = self.pixel_columns
        comparison.place_events()
        charts = [chart for chart in self.query(CompareChart) if chart.display]
        for chart in charts:
            chart.events, chart.has_legend = comparison.events, chart is charts[0] or chart is self.maximized
        if self.comparison.is_comparing:
            recall(self.app, comparison, self.logged, self.paired)
        has_room = not (self.has_class("-short") or self.has_class("-narrow"))
        self.query_one("#facts").display = has_room and not self._only_charts
        standing = self.query_one("#standing", ComparePanel)
        hidden = frozenset({1, 2}) if has_room else frozenset()
        if standing.hidden != hidden:
            standing.hide_tabs(hidden)
        standing.display = not self._only_charts
        lines = self._standing.bounds(max(1, standing.text_width))[1]
        is_whole = standing is self.maximized
        standing.styles.height = min(MOST_LINES, lines) + 2 if has_room and not is_whole else "2fr"
        if self.comparison.is_comparing and self.focused is None:
            self.query_one(self.MAIN).focus()

    def _select_current(self) -> None:
        """Select a run that was highlighted, so that keys act on it; highlight one that was selected elsewhere."""
        comparison, (highlighted, before) = self.comparison, self._seen
        selected = self.store.selected or ""
        is_elsewhere = selected != before and selected not in self._sent
        if is_elsewhere and comparison.run(selected) is not None:
            comparison.current = selected
        elif highlighted and comparison.current != highlighted and self.comparison.is_comparing:
            self._sent.append(comparison.current)
            self.app.post_message(SelectRun(comparison.current))
        if selected in self._sent:
            del self._sent[: self._sent.index(selected) + 1]
        self._seen = (comparison.current, selected)

    def _metrics(self, slots: int) -> list[str]:
        """The metrics that can be shown, in the order of the charts view."""
        logged = {str(row["name"]): row for row in self.logged[1].rows} or {name: {"name": name} for name in DEFAULT}
        pages = self.app.charts.pages(logged, slots)
        return [name for page in pages for name in page] or [name for name in DEFAULT if name in logged]

    def request_data(self) -> None:
        """Request curves, configurations and evaluations of the runs as they are due."""
        if not self.comparison.is_comparing:
            return
        app, comparison = self.app, self.comparison
        for run in comparison.runs:
            if (params := run.curves.due()) is not None:
                app.work(f"curves of {run.name}", partial(refresh_compared_curves, app, run, params))
        for run in comparison.facts_due():
            app.work(f"facts of {run.name}", partial(refresh_compared_facts, app, run))
        if self.logged[1].due(is_live=False):
            app.work("metrics of the pinned run", partial(refresh_metrics, app, *self.logged))
        if (params := self.paired.due(comparison.pin, comparison.runs)) is not None:
            app.work("pairs", partial(refresh_pairs, app, self.paired, params))

    # crosshair, metrics --------------------------------------------------------------------------------

    @property
    def curves(self) -> Curves | None:
        return self.comparison.pin.curves if self.comparison.pin is not None else None

    @property
    def ends(self) -> tuple[float, float] | None:
        return self.comparison.ends

    def go_to_step(self, step: int) -> None:
        """Put the crosshair on a step of the pinned run."""
        if (x := self.comparison.x_of_step(step)) is None:
            self.app.warn(f"step {step:,} is not on the axis; {self.app.key('compare_axis')} turns to steps")
        else:
            self.set_crosshair(x)

    def action_toggle_tables(self) -> None:
        """Show only charts, in up to three rows, or the tables again."""
        self._only_charts = not self._only_charts
        self.comparison.page = 0
        if self.focused is not None and not self.focused.has_class("chart"):
            self.query_one(self.MAIN).focus()
        self.tick()

    def action_turn_metrics(self, by: int) -> None:
        """Show the next or previous metrics in the charts."""
        self.comparison.page += by
        self.tick()

    # runs ----------------------------------------------------------------------------------------------

    @property
    def current(self) -> Compared | None:
        return self.comparison.run(self.comparison.current)

    def action_highlight(self, by: int) -> None:
        """Highlight the next (+1) or previous (-1) run."""
        self.comparison.move(by)
        self.tick()

    def action_pin(self) -> None:
        """Pin the highlighted run, or the next one; the others are compared with it."""
        if letter := self.comparison.pin_current():
            self.app.receipt(f"{letter} is pinned")
        self.tick()

    def action_open_run(self) -> None:
        """Open the charts of the highlighted run."""
        if (run := self.current) is not None:
            self.app.post_message(SelectRun(run.name))
            self.app.post_message(ShowView("charts"))

    def action_drop(self) -> None:
        """Remove the highlighted run, and its mark."""
        if (run := self.current) is not None:
            self.store.marks.toggle(run.name)
            self.tick()

    def common_step(self) -> tuple[Compared, Compared, str, int] | None:
        """The current run, or the first other one, the pinned one, and the newest step that is evaluated for both, with
        its dataset; None without one."""
        pin, run = self.comparison.pin, self.current
        if run is pin:
            run = next((one for one in self.comparison.runs if one is not pin), None)
        if run is None or pin is None or run.facts is None or pin.facts is None:
            return None
        found = [
            (step, dataset)
            for dataset, steps in run.facts.accuracies.items()
            for step in steps.keys() & pin.facts.accuracies.get(dataset, {}).keys()
        ]
        if not found:
            return None
        step, dataset = max(found)
        return run, pin, dataset, step

    def action_open_flips(self) -> None:
        """Show the problems that the highlighted run gets wrong and the pinned one right, at the same step."""
        if (found := self.common_step()) is None:
            self.app.warn("no step is evaluated for both runs; e on Home evaluates one")
            return
        run, pin, dataset, step = found
        self.app.post_message(SelectRun(run.name))
        self.app.post_message(OpenFlips(run.name, f"{run.name}_{dataset}", step, pin.name))

    def action_copy(self) -> None:
        """Copy the focused table, or the values of the focused chart."""
        focused = self.focused
        if isinstance(focused, CompareChart):
            self.app.copy(focused.values_text(), f"{focused.metric}: the values of {len(self.comparison.runs)} runs")
        elif isinstance(focused, ComparePanel):
            self.app.copy(focused.text(), "the table")

    def action_export(self) -> None:
        """Save every step of the compared runs as CSV, and the charts as SVG and PNG.

        Of the metrics in the charts; in full screen, of that chart alone.
        """
        tracks = [(run.name, run.curves.track) for run in self.comparison.runs]
        metrics = tuple(dict.fromkeys(("num_tokens", *self.saved_metrics)))
        ranges = [SavedRange(run, metrics, "step", 0, track.step[-1]) for run, track in tracks if track is not None]
        if self.saving or len(ranges) < len(tracks) or (ends := self.comparison.ends) is None:
            self.app.warn(self.saving or "wait until all curves are whole", "not saved")
        else:
            self.app.work("export", partial(save_runs, self.app, ranges, self._picture(ends), self.say_saving))

    def _picture(self, ends: tuple[float, float]) -> str:
        """The charts as SVG."""
        comparison = self.comparison
        runs = [run for run in comparison.runs if run.curves.axis == comparison.x]
        drawings = [
            Drawing(name, [line_of(run, name, comparison.mean_over) for run in runs], name in comparison.logarithmic)
            for name in self.saved_metrics
        ]
        line = smoothing_label(comparison.smoothing, comparison.mean_over)
        title = f"{len(runs)} runs over {comparison.x}, line: {line}"
        return charts_svg(title, drawings, ends, comparison.axis, self.store.price_per_hour)

    # panels --------------------------------------------------------------------------------------------

    def action_toggle_all_keys(self) -> None:
        """List all keys of the configurations, or those that differ."""
        self.comparison.shows_all ^= True
        self.tick()

    def action_next_table(self) -> None:
        """Show the next table.

        Where there is room for all of them, focus it.
        """
        standing = self.query_one("#standing", ComparePanel)
        if not standing.hidden:
            standing.show_tab(standing.active + 1)
            return
        tables = [self.query_one(f"#{name}", ComparePanel) for name in ("config", "evaluations", "standing")]
        at = next((i for i, table in enumerate(tables) if table.has_focus), -1)
        tables[(at + 1) % len(tables)].focus()


LEGEND_LINES = 3


class AboutComparison(Line):
    """Axis, smoothing, what differs; then the runs with their letters and lines."""

    def __init__(self, store: Store, comparison: Comparison, saving: Callable[[], str], *, id: str) -> None:
        super().__init__(store, id=id)
        self._comparison, self._saving = comparison, saving
        self._lines_of: tuple[object, list[Content]] = (None, [])

    def state(self) -> object:
        comparison = self._comparison
        return (
            self.size.width, comparison.version, comparison.window, comparison.smoothing, comparison.mean_over,
            comparison.left_out,
            self._saving(), self.screen.has_class("-short"), [id(run.facts) for run in comparison.runs],
            self._age(),
        )  # fmt: skip

    def _age(self) -> str:
        """The age of what the laptop kept, while that is shown."""
        at = self._comparison.recalled_at
        return "" if at is None else duration(self.store.now() - at)

    def lines(self, width: int) -> list[Content]:
        """The lines that fit into ``width``; made once for each state."""
        if (key := (width, self.state())) != self._lines_of[0]:
            self._lines_of = (key, self._lines(width))
        return self._lines_of[1]

    def _lines(self, width: int) -> list[Content]:
        comparison = self._comparison
        pin = comparison.pin
        text = Content.from_markup("[bold $primary]compare[/]")
        if pin is None or not comparison.is_comparing:
            return [text]
        parts = [
            ("", f"{len(comparison.runs)} runs ({pin.letter} pinned)"),
            ("x: ", AXIS_NAMES[comparison.x]),
            ("line: ", smoothing_label(comparison.smoothing, comparison.mean_over)),
        ]
        for name, value in parts:
            text += Content.from_markup("   [$text-muted]$name[/]$value", name=name, value=value)
        if age := self._age():
            text += Content.from_markup("   [$warning]as it was $age ago[/]", age=age)
        if saving := self._saving():
            text += Content.from_markup("   [$secondary]$text[/]", text=saving)
        if comparison.left_out:
            text += Content.from_markup(
                "   [$warning]▲ $count marked runs are left out: at most $most[/]",
                count=str(comparison.left_out), most=str(len(LETTERS)),
            )  # fmt: skip
        if (current := comparison.run(comparison.current)) is not None:
            text += Content.from_markup("   [$text-muted]events: [/]$letter", letter=current.letter)
        return [text.truncate(width, ellipsis=True), *self._legend(width)]

    def _legend(self, width: int) -> list[Content]:
        comparison = self._comparison
        count = len(comparison.runs)
        most = 2 if self.screen.has_class("-short") else LEGEND_LINES
        a_line = -(-count // most)
        room = max(6, width // min(count, max(a_line, 3)) - len("A  ━━   ") - 3)
        configs = {run.name: run.facts.config for run in comparison.runs if run.facts is not None}
        names = short_names([run.name for run in comparison.runs], configs).short
        lines = [Content()]
        for run in comparison.runs:
            name = fitting_name(names.get(run.name) or run.name, min(32, room))
            are = (run.name == comparison.pinned, run.name == comparison.current, bool(comparison.mean_over))
            part = legend(run, name, *are)
            if lines[-1].cell_length + 3 + part.cell_length > width and lines[-1]:
                if len(lines) == most:
                    break
                lines.append(Content())
            lines[-1] += (Content("   ") if lines[-1] else Content()) + part
        return lines

    def render(self) -> Content:
        return Content("\n").join(self.lines(self.size.width - 2))


class WhatIsMissing(Line):
    """What would be here, and which key makes it, while fewer than two runs are marked."""

    def state(self) -> object:
        return self.render()

    def render(self) -> Content:
        marked = list(self.store.marks)
        keys = {name: self.key(name) for name in ("home", "mark", "compare")}
        text = Content.from_markup(
            "two to twelve runs side by side: their curves, what differs in their configurations,\n"
            "their evaluations in pairs, and where they are at the same step, time and cost\n\n"
            "[bold $primary]$home[/] turns to Home, [bold $primary]$mark[/] marks the run under the cursor, "
            "[bold $primary]$compare[/] returns",
            **keys,
        )
        if marked:
            text += Content.from_markup("\n\n[$text-muted]marked so far: $run[/]", run=marked[0])
        return text
