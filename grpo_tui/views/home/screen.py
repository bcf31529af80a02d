"""Home: the runs of a box, and a summary of the selected one, on one screen at any terminal size."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import ClassVar

from textual.containers import Container, Horizontal, Vertical
from textual.widget import Widget
from textual.widgets import Input

from grpo_train.run_dir.curves import LEVELS, RAW
from grpo_train.run_dir.files import to_float
from grpo_tui.background import ask_resume_step, refresh_run_facts, refresh_trend
from grpo_tui.box.charts import CHARTS
from grpo_tui.box.curves import Curves
from grpo_tui.box.formatting import counted
from grpo_tui.box.log import run_path
from grpo_tui.box.needs import Need, Needs, dismissed_in
from grpo_tui.box.run_columns import KNOWN
from grpo_tui.box.run_facts import KnownFacts
from grpo_tui.kit import terminal
from grpo_tui.kit.chart import CurveChart
from grpo_tui.kit.desk import Desk, OpenCheckpoint, SelectRun, ShowView
from grpo_tui.kit.gpu import GpuPanel
from grpo_tui.kit.lists import LinesPanel
from grpo_tui.kit.sources import CheckpointsSource, CompletionSource, log_sources
from grpo_tui.views.home.model import NARROW, Layout, csv_table, layout
from grpo_tui.views.home.panels import ErrorPanel, HealthSource, NeedsPanel, Notice
from grpo_tui.views.home.runs import RunsPanel
from grpo_tui.views.home.summary import CheckpointsLine, SummaryPanel
from grpo_tui.views.view import ViewScreen, bindings_of

TRAIN_LOG, CONSOLE, ROLLOUTS, COMPLETION = range(4)
"""Tabs of the log panel. Rollouts need the full width; the completion has a panel on larger terminals."""


class HomeScreen(ViewScreen):
    """Composes the panels, and chooses what fits."""

    NAME = "home"
    MAIN = "#runs"
    FILTER_HINT = "words, state:running, lr>=1e-6, reward>1 or kl<0.1; enter applies, esc clears"
    BINDINGS: ClassVar = bindings_of("home")

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.runs = desk.runs
        self._noticed: bool | None = None
        self._layout: Layout | None = None
        self._laid_for: tuple[int, Widget | None, tuple[int, ...]] = (0, None, ())
        self._needs: Needs | None = None
        self.smoothing = RAW
        self._turned_to_console = False
        """Whether the log panel shows the console because a run starts."""

    def panels(self) -> Iterable[Widget]:
        store = self.store
        charts = Container(
            *(
                CurveChart(
                    store, self._curves, chart.metric, id=f"chart-{chart.id}",
                    classes=f"panel chart -color-{chart.id}",
                )
                for chart in CHARTS
            ),
            id="charts",
        )  # fmt: skip
        logs = [*log_sources(store), CompletionSource(store), CheckpointsSource(store), HealthSource(store)]
        summary = SummaryPanel(store, self._facts, lambda run: self.needs.next_of(run), id="summary")
        yield Notice(store, id="notice")
        yield RunsPanel(store, self.runs, id="runs")
        yield Horizontal(
            Vertical(ErrorPanel(store, id="error"), summary, charts, id="left"),
            Vertical(
                NeedsPanel(store, lambda: self.needs, id="needs"),
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
        self._noticed = self._layout = self._needs = None
        self.runs.forget()

    def _facts(self) -> KnownFacts:
        return self.runs.facts

    @property
    def needs(self) -> Needs:
        """What needs the user on this box."""
        if self._needs is None:
            kept = self.app.preferences.looks.get(self.app.connection.list_name)
            self._needs = Needs(dismissed_in(kept), self.app.options.alarms, self.runs.facts)
        return self._needs

    def _charts(self) -> list[CurveChart]:
        return [chart for chart in self.query_one("#charts").children if isinstance(chart, CurveChart)]

    def _curves(self) -> Curves | None:
        return self.store.curves.get("home")

    def request_data(self) -> None:
        """Request configurations and metrics that names, columns and filter need."""
        if (params := self.runs.facts.due(self.store.runs or ())) is not None:
            self.app.work("run facts", partial(refresh_run_facts, self.app, self.runs.facts, params))
        self._request_trend()
        if (need := self.needs.to_ask()) is not None:
            self.app.work(f"resume step of {need.run}", partial(ask_resume_step, self.app, self.needs, need))

    def _request_trend(self) -> None:
        """Request the curve of a run on the screen, one after the other, after the curves of the selected run."""
        curves = self._curves()
        has_column = {"reward", "trend", "best"} & set(self.runs.columns)
        if not has_column or (curves is not None and not curves.is_answered):
            return
        panel = self.query_one_optional(RunsPanel)
        if panel is not None and (params := self.runs.trends.due(panel.on_screen)) is not None:
            self.app.work("trend", partial(refresh_trend, self.app, self.runs.trends, params))

    def update(self) -> None:
        notice = self.query_one(Notice)
        wanted = notice.wanted
        if self._noticed != wanted:
            self._noticed = wanted
            notice.display = wanted
            for name in ("#runs", "#body", "#gpu"):
                self.query_one(name).display = not wanted
            if not wanted and self.focused is None:
                self.query_one(RunsPanel).focus()
        self.runs.update(self.store)
        self.show_mistake(self.runs.mistake)
        if not wanted:
            self._place()
        if (curves := self._curves()) is not None:
            curves.smoothing = self.smoothing
            shown = [chart for chart in self._charts() if chart.display]
            curves.show(tuple(chart.metric for chart in shown), max((one.pixel_columns for one in shown), default=0))
        self._unfocus_hidden()

    def update_needs(self) -> None:
        """Update what needs the user, in any view; new entries are told to the terminal, which rings or notifies."""
        self.needs.update(self.store, self.runs.names.short, self.app.key)
        if self.store.runs is not None and self.store.recalled_at is None and (found := self.needs.new_entries()):
            terminal.tell(self.app, self.store.box, found, self.app.options.terminal)

    def _place(self) -> None:
        """Give each panel its rows."""
        is_short = self.has_class("-short")
        error, summary, gpu = self.query_one(ErrorPanel), self.query_one(SummaryPanel), self.query_one(GpuPanel)
        gpu_rows = gpu.lines_wanted() + (0 if is_short else 2)
        is_narrow = self.size.width < NARROW
        heights = summary.heights(is_narrow)
        found = layout(
            self.size.width,
            self.size.height - (3 if is_short else 4) - gpu_rows,
            runs=len(self.runs.rows),
            error=error.lines_wanted() if error.wanted else 0,
            summary=sum(heights),
            needs=2 * len(self.needs.entries),
            starting=(starting := self._is_starting),
        )
        if found == self._layout and (gpu_rows, self.maximized, heights) == self._laid_for:
            return
        summary.show_as(heights, is_narrow)
        self._layout, self._laid_for = found, (gpu_rows, self.maximized, heights)
        rows: dict[Widget, int] = {
            gpu: gpu_rows,
            error: found.error,
            summary: found.summary,
            self.query_one(RunsPanel): found.runs,
        }
        charts, left, right = self.query_one("#charts"), self.query_one("#left"), self.query_one("#right")
        texts, needs = self.query_one("#texts"), self.query_one(NeedsPanel)
        rows[needs] = found.needs
        rows[charts] = found.charts
        if not found.log and self.focused is not None and texts in self.focused.ancestors:
            self.query_one(RunsPanel).focus()  # Textual would choose another panel
        for panel, height in rows.items():
            panel.display = height > 0
            panel.styles.height = "1fr" if panel is self.maximized else height
        for index, chart in enumerate(self._charts()):
            chart.display = index < found.chart_count
        charts.styles.grid_size_columns = found.chart_columns
        left.display = bool(found.error or found.summary or found.charts)
        left.styles.height = found.error + found.summary + found.charts if found.is_stacked else "1fr"
        texts.display = found.log > 0
        right.display = found.log > 0 or found.needs > 0
        self.query_one("#body").set_class(starting, "-starting")
        log = self.query_one("#log", LinesPanel)
        if starting and log.active == TRAIN_LOG:
            self._turned_to_console = True
            log.show_tab(CONSOLE)
        elif not starting and self._turned_to_console:
            self._turned_to_console = False
            if log.active == CONSOLE:
                log.show_tab(TRAIN_LOG)
        self.query_one("#completion").display = found.completion
        hidden = {COMPLETION} if found.completion else {ROLLOUTS} if not found.is_stacked else set()
        log.hide_tabs(frozenset(hidden))

    @property
    def _is_starting(self) -> bool:
        """Whether the selected run has no step yet, and its console says what it does."""
        store = self.store
        run, logs = store.run, store.logs
        return bool(run and run.is_live and not store.step and logs and len(logs.console))

    def _unfocus_hidden(self) -> None:
        """A panel for which the terminal is too small takes no key."""
        if isinstance(self.focused, (LinesPanel, SummaryPanel)) and not self.focused.focusable:
            self.query_one(RunsPanel).focus()

    def on_health_line_opened(self) -> None:
        """Show the health tab of the log panel."""
        log = self.query_one("#log", LinesPanel)
        log.show_tab(next(i for i, source in enumerate(log.sources) if isinstance(source, HealthSource)))

    def action_show_next_log(self) -> None:
        """Show the next log tab."""
        log = self.query_one("#log", LinesPanel)
        if log.is_seen:
            log.show_tab(log.active + 1)
        else:
            self.app.warn("the logs are not on the screen: restore the zoomed panel or enlarge the terminal")

    # the list ------------------------------------------------------------------------------------------

    def sort_by(self, column: str) -> None:
        """Sort by a column; by the same one again, the other way round."""
        self.runs.order = self.runs.order.toggled(column)
        self.query_one(RunsPanel).tick()

    def on_table_panel_sorted(self, event: RunsPanel.Sorted) -> None:
        self.sort_by(event.column)

    async def action_sort(self) -> None:
        """Sort the runs by a column; the same column again: the other direction."""
        from grpo_tui.dialogs.runs import OrderScreen

        runs = self.runs
        columns = list(dict.fromkeys(["start", "name", *runs.columns, runs.order.column]))
        if (chosen := await self.app.show_dialog(OrderScreen(columns, runs.order))) is not None:
            self.sort_by(chosen)

    async def action_choose_columns(self) -> None:
        """Choose the columns of the list of runs."""
        from grpo_tui.dialogs.runs import ColumnsScreen
        from grpo_tui.files import write_columns

        runs = self.runs
        row = self.store.logs.rows.last if self.store.logs else None
        logged = sorted(name for name, value in row.fields.items() if to_float(value) is not None) if row else []
        others = [*list(KNOWN)[1:], *logged, *runs.facts.keys()]
        chosen = await self.app.show_dialog(ColumnsScreen(runs.columns, list(dict.fromkeys(others))))
        if chosen is None:
            return
        runs.columns = chosen
        self.tick()
        try:
            await asyncio.to_thread(write_columns, chosen)
        except OSError as error:
            self.app.warn(str(error), title="the columns were not saved")

    def action_toggle_full_names(self) -> None:
        """Show full names, or what differs between the runs shown."""
        self.runs.full_names ^= True
        self.tick()

    def action_copy_path(self) -> None:
        """Copy the path of the run's directory on the box."""
        root, run = str((self.store.host or {}).get("root") or "").rstrip("/"), self.store.selected or ""
        self.app.copy(f"{root}/{run_path(run)}" if root else run_path(run), f"path of {run}")

    def action_export(self) -> None:
        """Save the list of runs as CSV, on this machine."""
        from grpo_tui.kit.save import save_table

        runs = self.runs
        save_table(self.app, f"{self.store.box}_runs", csv_table(runs, self.store), len(runs.rows), "run")

    def action_open_focused(self) -> None:
        """Open the charts of the run, or the focused panel."""
        if self.maximized is None and isinstance(self.focused, RunsPanel):
            self.app.post_message(ShowView("charts"))
        elif isinstance(self.focused, SummaryPanel):
            if (checkpoint := self.focused.checkpoint) is not None and checkpoint.step is not None:
                self.open_checkpoint(checkpoint.step)
        elif self.maximized is None and isinstance(self.focused, NeedsPanel) and (need := self.focused.current):
            self.open_need(need)
        else:
            self.action_zoom()

    def open_checkpoint(self, step: int) -> None:
        """Show the completions of an evaluated checkpoint, or say how to evaluate it."""
        self.app.post_message(OpenCheckpoint(step))

    def on_checkpoints_line_opened(self, event: CheckpointsLine.Opened) -> None:
        self.open_checkpoint(event.step)

    # what needs the user -------------------------------------------------------------------------------

    def open_need(self, need: Need) -> None:
        """Select the run of an entry, and give the keys to the list; of a GPU, show the box."""
        if need.run:
            self.runs.set_filter("")
            self.app.post_message(SelectRun(need.run))
            self.query_one(RunsPanel).focus()
        elif any(action.scope == "box" for action in self.actions):
            self.app.post_message(ShowView("box"))

    def on_needs_panel_opened(self, event: NeedsPanel.Opened) -> None:
        self.open_need(event.need)

    def action_dismiss_need(self) -> None:
        """Dismiss the entry under the cursor in the list of what needs you.

        From another panel, the keys go there first.
        """
        panel = self.query_one(NeedsPanel)
        if not panel.has_focus:
            panel.focus()
        elif (need := panel.current) is not None:
            self.needs.dismiss(need.key)
            self.app.receipt("dismissed", f"{need.text}; {self.app.key('bring_back')} brings it back")
        self.tick()

    def action_bring_back_needs(self) -> None:
        """Show again what was dismissed from the list of what needs you."""
        count = self.needs.bring_back()
        self.app.receipt("dismissed", f"{counted(count, 'entry', 'entries')} brought back" if count else "nothing was")
        self.tick()

    def back(self) -> bool:
        """Restore the zoomed panel, else clear the filter."""
        if self.maximized is not None:
            self.minimize()
            self.call_after_refresh(self.tick)
        elif self.runs.filter:
            self.runs.set_filter("")
            self.query_one("#filter", Input).value = ""
            self.tick()
            self.filter_closed()
        return True

    def action_smooth(self) -> None:
        """Draw the values, or a mean of a few or many of them."""
        self.smoothing = LEVELS[(LEVELS.index(self.smoothing) + 1) % len(LEVELS)]
        self.tick()
        self.app.receipt(f"curves: {self.smoothing}")

    # filter --------------------------------------------------------------------------------------------

    @property
    def filter(self) -> str:
        return self.runs.filter

    @property
    def hides_selection(self) -> bool:
        """Whether the filter leaves out the selected run: no key may act on what cannot be seen."""
        panel = self.query_one(RunsPanel)
        return bool(self.runs.filter) and panel.cursor < 0 and not self.store.marks

    def set_filter(self, text: str) -> None:
        self.runs.set_filter(text)
        self.tick()

    def filter_closed(self) -> None:
        runs = self.query_one(RunsPanel)
        runs.call_later(runs.select_a_shown_run)  # posted by the panel itself: Textual stops a message at its sender
