"""History: the runs of all boxes, also of boxes that are gone, what they cost, and how they were tracked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import ClassVar

from textual.widget import Widget

from grpo_train.history.database import HistoryError
from grpo_train.history.query import QueryError
from grpo_train.history.record import Record
from grpo_tui.actions.action import Action
from grpo_tui.model.app_time import monotonic
from grpo_tui.model.history_table import TABLES, Answer, Asked, read, version_of
from grpo_tui.model.run_list import Order
from grpo_tui.model.store import Store
from grpo_tui.screens.view import ViewScreen, bindings_of
from grpo_tui.widgets.history_panels import AboutHistory, HistoryDetails, HistoryTable

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

    def __init__(self, store: Store, actions: tuple[Action, ...], readonly: bool) -> None:
        super().__init__(store, actions, readonly)
        self.asked = Asked()
        self.answer: Answer | None = None
        self.problem = ""
        """Why the file cannot be read; what was read before stays."""
        self.mistake: QueryError | None = None
        """Why the query cannot be read; the last one that could be stays."""
        self.version = 0
        """Grows whenever something else is shown."""
        self._read: object = None
        """What was read: the question, and the file as it was."""
        self._looked_at = 0.0
        self._is_reading = False
        self._selected: tuple[str, str | None] = ("", None)
        """Box and name of the run that was selected when the view was shown last …"""
        self._starts_at: tuple[str, str | None] | None = None
        """… if the cursor has yet to go there."""

    def panels(self) -> Iterable[Widget]:
        yield AboutHistory(self.store, self, id="about")
        yield HistoryTable(self.store, self, id="history-table")
        yield HistoryDetails(self.store, lambda: self.record, id="history-details")

    @property
    def record(self) -> Record | None:
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
        path = self.grpo.options.history
        if path is None or self._is_reading:
            return
        is_asked = self._read is None or self._read[0] != self.asked  # type: ignore[index]
        if not is_asked and monotonic() - self._looked_at < AGAIN_S:
            return
        self._looked_at = monotonic()
        wanted = (self.asked, version_of(path))
        if wanted != self._read:
            self._read, self._is_reading = wanted, True
            self.grpo.work("history table", partial(self._fill, self.asked))

    async def _fill(self, asked: Asked) -> None:
        path = self.grpo.options.history
        assert path is not None
        mistake = None
        try:
            self.answer = await asyncio.to_thread(read, path, asked, self.store.now())
            self.problem = ""
        except QueryError as error:
            mistake = error
        except HistoryError as error:
            self.problem = str(error)
        finally:
            self._is_reading = False
        self.version += 1
        if self.is_mounted and asked == self.asked:
            self.mistake = mistake
            self.show_mistake(mistake)
        if self.grpo.views.name == self.NAME:
            self.tick()

    def nothing(self) -> str:
        """Why the table is empty."""
        if self.grpo.options.history is None:
            return "started with --no-cache: the history is neither read nor written"
        if self.answer is None:
            return self.problem or "reading the history"
        if not self.answer.known:
            return "no runs are known yet: the app records those of each box that it connects to"
        if self.answer.found:
            return "nothing ran in this time"
        return "no runs match" if self.mistake is None else "no runs match the last valid query"

    # what is asked -------------------------------------------------------------------------------------

    @property
    def filter(self) -> str:
        return self.asked.query

    def set_filter(self, text: str) -> None:
        self._ask(replace(self.asked, query=text, order=None))

    def next_table(self) -> None:
        """Turn to the next table."""
        place = (TABLES.index(self.asked.table) + 1) % len(TABLES)
        self._ask(replace(self.asked, table=TABLES[place]))

    @property
    def order(self) -> Order:
        """What the runs are sorted by."""
        return self.answer.order if self.answer is not None else Order("launched")

    def sort_by(self, column: str) -> None:
        """Sort by a column; by the same one again, the other way round."""
        self._ask(replace(self.asked, order=self.order.toggled(column)))

    def on_history_table_sorted(self, event: HistoryTable.Sorted) -> None:
        if self.asked.table == TABLES[0]:
            self.sort_by(event.column)

    def _ask(self, asked: Asked) -> None:
        if asked != self.asked:
            self.asked = asked
            self.version += 1
            self.tick()

    def cursor_moved(self) -> None:
        """The user moved: show the details of another run."""
        self._starts_at = None
        self.query_one(HistoryDetails).tick()

    def back(self) -> bool:
        """One step out: the full-screen panel, the query, the costs; returns False if there is none."""
        if self.maximized is not None:
            self.zoom()
        elif self.asked.query:
            self.set_filter("")
            self.show_mistake(None)
        elif self.asked.table != TABLES[0]:
            self._ask(replace(self.asked, table=TABLES[0]))
        else:
            return False
        return True
