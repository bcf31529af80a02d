"""History: the runs of all boxes, also of boxes that are gone, what they cost, and how they were tracked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Button, Static

from grpo_train.history.database import HistoryError
from grpo_train.history.listing import record_lines
from grpo_train.history.query import QueryError
from grpo_train.history.record import RunRecord
from grpo_tui.box.asking import monotonic
from grpo_tui.box.events import TrackedRun, tracking_of
from grpo_tui.dialogs.runs import OrderScreen
from grpo_tui.kit.desk import Desk, SelectRun, ShowView
from grpo_tui.kit.dialog import TextDialog
from grpo_tui.views.history.model import TABLES, HistoryQuery, HistoryView, read, version_of
from grpo_tui.views.history.panels import AboutHistory, HistoryDetails, HistoryTable
from grpo_tui.views.view import ViewScreen, bindings_of
from remote.boxes import Box, BoxesError, load_boxes

AGAIN_S = 2.0
"""Pause between two looks at a file that other programs write to."""
DETAILS_ROWS = 26
"""Rows of a terminal that has room for what is known of the run under the cursor."""


class HistoryScreen(ViewScreen):
    """The file of records on this machine, which needs no box."""

    NAME = "history"
    MAIN = "#history-table"
    FILTER_HINT = "task:gsm8k eval.accuracy>0.6 since:30d sort:-reward; enter applies, esc clears"
    BINDINGS: ClassVar = bindings_of("history")

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self.view = HistoryView(desk.options.no_history)
        self._read: object = None
        """What was read: the question, and the file as it was."""
        self._looked_at = 0.0
        self._is_reading = False
        self._selected: tuple[str, str | None] = ("", None)
        """Box and name of the run that was selected when the view was shown last …"""
        self._starts_at: tuple[str, str | None] | None = None
        """… if the cursor has yet to go there."""

    def panels(self) -> Iterable[Widget]:
        yield AboutHistory(self.store, self.view, id="about")
        yield HistoryTable(self.store, self.view, id="history-table")
        yield HistoryDetails(self.store, lambda: self.record, id="history-details")

    @property
    def record(self) -> RunRecord | None:
        """The run under the cursor."""
        return self.query_one(HistoryTable).record

    def update(self) -> None:
        """Read the file if it changed or something else is asked; the details where there is room."""
        if (selected := (self.store.box, self.store.selected)) != self._selected:
            self._selected = self._starts_at = selected
        if self._starts_at is not None and self.query_one(HistoryTable).go_to(*self._starts_at):
            self._starts_at = None
        details = self.query_one(HistoryDetails)
        details.display = self.size.height >= DETAILS_ROWS and self.record is not None
        path = self.app.options.history
        if path is None or self._is_reading:
            return
        is_asked = self._read is None or self._read[0] != self.view.asked  # type: ignore[index]
        if not is_asked and monotonic() - self._looked_at < AGAIN_S:
            return
        self._looked_at = monotonic()
        wanted = (self.view.asked, version_of(path))
        if wanted != self._read:
            self._read, self._is_reading = wanted, True
            self.app.work("history table", partial(self._fill, self.view.asked))

    async def _fill(self, asked: HistoryQuery) -> None:
        path = self.app.options.history
        assert path is not None
        mistake = None
        try:
            self.view.answer = await asyncio.to_thread(read, path, asked, self.store.now())
            self.view.problem = ""
        except QueryError as error:
            mistake = error
        except HistoryError as error:
            self.view.problem = str(error)
        finally:
            self._is_reading = False
        self.view.version += 1
        if self.is_mounted and asked == self.view.asked:
            self.view.mistake = mistake
            self.show_mistake(mistake)
        if self.app.view == self.NAME:
            self.tick()

    # what is asked -------------------------------------------------------------------------------------

    @property
    def filter(self) -> str:
        return self.view.asked.query

    def set_filter(self, text: str) -> None:
        self._ask(replace(self.view.asked, query=text, order=None))

    def action_next_table(self) -> None:
        """Show the runs, or the cost by run, box or day, with idle time apart."""
        place = (TABLES.index(self.view.asked.table) + 1) % len(TABLES)
        self._ask(replace(self.view.asked, table=TABLES[place]))

    def sort_by(self, column: str) -> None:
        """Sort by a column; by the same one again, the other way round."""
        self._ask(replace(self.view.asked, order=self.view.order.toggled(column)))

    def on_table_panel_sorted(self, event: HistoryTable.Sorted) -> None:
        if self.view.asked.table == TABLES[0]:
            self.sort_by(event.column)

    def _ask(self, asked: HistoryQuery) -> None:
        if asked != self.view.asked:
            self.view.asked = asked
            self.view.version += 1
            self.tick()

    async def action_sort(self) -> None:
        """Sort the runs by a column; the same column again: the other direction."""
        view = self.view
        if view.asked.table != TABLES[0] or view.answer is None:
            self.app.warn("costs have an order of their own: by cost, box or day")
            return
        columns = list(dict.fromkeys([*view.answer.rows.columns, view.order.column]))
        if (chosen := await self.app.show_dialog(OrderScreen(columns, view.order))) is not None:
            self.sort_by(chosen)

    async def action_open_run(self) -> None:
        """Open the run on its box where it exists, else show what is known of it."""
        if (record := self.record) is None:
            self.app.warn("no run under the cursor")
            return
        if record.box == self.store.box:
            if any(row.name == record.name for row in self.store.runs or ()):
                self.app.post_message(SelectRun(record.name))
                self.app.post_message(ShowView("charts"))
            else:
                self.action_show_details()
        elif (box := await self._box_of(record)) is None:
            self.action_show_details()
        else:
            self.app.post_message(ShowView("home"))
            await self.app.use_box(box)
            self.app.post_message(SelectRun(record.name))
            self.app.receipt(f"connecting to {box.name}", f"{record.name} is selected once the box lists it")

    async def _box_of(self, record: RunRecord) -> Box | None:
        """The box of a run in boxes.yaml, with the root that the run is under."""
        try:
            boxes = await asyncio.to_thread(load_boxes, self.app.options.boxes_file)
        except BoxesError:
            return None
        return next((box for box in boxes if box.name == record.box and box.root == record.root), None)

    def action_show_details(self) -> None:
        """Show everything that is known of the run: values, evaluations, events, configuration."""
        if (record := self.record) is None:
            self.app.warn("no run under the cursor")
        else:
            self.app.push_screen(RecordScreen(record))

    def tracking(self) -> TrackedRun | None:
        if (record := self.record) is None:
            return None
        return tracking_of(record.name, record.events, record.config_value("tracking.wandb"))

    def on_history_table_moved(self) -> None:
        """The user moved: show the details of another run."""
        self._starts_at = None
        self.query_one(HistoryDetails).tick()

    def back(self) -> bool:
        """One step out: the full-screen panel, the query, the costs; returns False if there is none."""
        if self.maximized is not None:
            self.action_zoom()
        elif self.view.asked.query:
            self.set_filter("")
            self.show_mistake(None)
        elif self.view.asked.table != TABLES[0]:
            self._ask(replace(self.view.asked, table=TABLES[0]))
        else:
            return False
        return True


class RecordScreen(TextDialog[None]):
    """As ``grpo-tui history show``; ``y`` copies it."""

    BINDINGS: ClassVar = [Binding("y", "copy", show=False)]

    def __init__(self, record: RunRecord) -> None:
        super().__init__()
        self.heading, self.record = f"{record.name} on {record.box}", record
        self.lines = record_lines(record)

    def compose_text(self) -> ComposeResult:
        yield Static(Content("\n").join(_toned(self.lines)), classes="message")

    def compose_below(self) -> ComposeResult:
        note = "as it was last heard; the box or a backup has the curves · y copies"
        yield Static(Content.from_markup("[$grpo-muted]$note[/]", note=note), classes="message")

    def compose_buttons(self) -> ComposeResult:
        yield Button("Close", id="cancel", compact=True)
        yield Button("Copy", id="copy", compact=True)

    def on_mount(self) -> None:
        self.query_one("#cancel").focus()

    def chosen(self, button: str) -> None:
        self.action_copy()

    def action_copy(self) -> None:
        """Copy all of it."""
        self.app.copy("\n".join(self.lines), f"what is known of {self.record.name}")


def _toned(lines: list[str]) -> Iterator[Content]:
    for line in lines:
        label, _, rest = line.partition(" ")
        yield Content.from_markup("[$grpo-muted]$label[/] $rest", label=label, rest=rest)
