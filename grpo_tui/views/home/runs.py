"""The list of runs. The cursor stays on its run when the list changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text
from textual.content import Content
from textual.message import Message
from textual.timer import Timer

from grpo_train.run_dir.display import duration, state_label
from grpo_tui.model.formatting import padded, short_age, shortened
from grpo_tui.model.run_columns import Cells, Column
from grpo_tui.model.run_facts import MOST_RUNS
from grpo_tui.model.run_list import RunList
from grpo_tui.model.run_names import fitting_name
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Freshness, Store
from grpo_tui.model.table import GAP, Sized, fit
from grpo_tui.widgets.blocks import bars_in_blocks
from grpo_tui.widgets.list_panel import ListPanel
from grpo_tui.widgets.panel import TONES, from_markup, toned

REST_S = 0.1
"""The run under the cursor is selected once the cursor has not moved for this long."""
NAME_LEAST = len("11-20 22:10")
NAME_WANTED = len("run_2026-11-20_22-10-41")
FIRM = 2
"""Columns up to this rank leave the name only NAME_LEAST cells."""
HEAD_FROM, FOOT_FROM = 4, 6
"""Lines of the panel from which it has a heading, and a line about the names."""


class RunsPanel(ListPanel):
    """One line per run, with the columns that fit. A marked run has a ``*``."""

    COMPONENT_CLASSES: ClassVar = {f"runs--{tone}" for tone in TONES}

    class RunChosen(Message):
        """The cursor moved to a run."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    class Sorted(Message):
        """The heading of a column was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, store: Store, runs: RunList, *, id: str) -> None:
        super().__init__(store, id=id)
        self.runs = runs
        self._under_cursor: str | None = None
        """The run under the cursor until it is the selected one, which it becomes once the cursor rests."""
        self._rest: Timer | None = None
        self._laid_out: tuple[object, list[tuple[Column, int]], int] = (None, [], 0)
        """What the layout is made of, each column with its width, the width of the name."""
        self._spans: list[tuple[int, int, str]] = []
        """Where each heading is."""

    @property
    def cells(self) -> Cells:
        return self.runs.cells(self.store)

    def state(self) -> object:
        runs, store, top = self.runs, self.store, round(self.scroll_offset.y)
        shown = runs.rows[top : top + self.size.height]
        ages = tuple(short_age(store.row_age(row)) for row in shown)
        tones = tuple(store.row_tone(row) for row in shown)
        return (
            runs.version, runs.trends.version, runs.columns, runs.order, runs.full_names, store.versions["runs"],
            store.versions["link"],
            store.selected, self.cursor, store.step, runs.filter, top, ages, tones, self.size, self.app.theme,
            self.has_focus, tuple(store.marks),
        )  # fmt: skip

    def refresh_titles(self) -> None:
        runs, rows = self.runs, self.store.runs or []
        order = runs.order
        title = Content("runs")
        if runs.filter:
            title += from_markup(
                " [$warning]/$filter[/] [$text-muted]$shown of $all[/]",
                filter=runs.filter, shown=str(len(runs.rows)), all=str(len(rows)),
            )  # fmt: skip
        elif rows:
            title += from_markup(" [$text-muted]$all[/]", all=str(len(rows)))
        if runs.mistake is not None:
            title += from_markup(" [$error]✖ $why[/]", why=runs.mistake.message)
        if rows and not self._has_heading(order.column):
            by = f"sorted by {order.column} {order.arrow}"
            title += from_markup(" [$text-muted]· $by[/]", by=by)
        fresh = Freshness(self.store.topic_problem("runs"), "warn")
        if self.store.recalled_at is not None:
            fresh = Freshness(f"as it was {duration(self.store.now() - self.store.recalled_at)} ago", "warn")
        elif not self.store.connected and rows:
            fresh = Freshness("link lost", "bad")
        below = toned(fresh)
        if runs.filter and not fresh.text:
            below = from_markup("[$text-muted]$key: show all[/]", key=self.key("back"))
        if unknown := runs.unknown(self.store):
            text = f"▲ config and metrics of the newest {MOST_RUNS:,} runs only, not of {unknown:,} older ones"
            told = from_markup("[$warning]$text[/]", text=text)
            below = Content("  ").join([told, below]) if below else told
        if count := len(self.store.marks):
            compares = f": {self.key('compare')} compares them" if count > 1 else ""
            text = f"{count} marked (*){compares}"
            marked = from_markup("[$primary]$text[/]", text=text)
            below = Content("  ").join([marked, below]) if below else marked
        self.set_titles(title, below)

    def _has_heading(self, column: str) -> bool:
        return bool(self.head) and (column == "name" or any(one.id == column for one, _ in self._laid_out[1]))

    def tick(self) -> None:
        self.runs.update(self.store)
        if self._rest is None and self._under_cursor == self.store.selected:
            self._under_cursor = None
        super().tick()

    # cursor --------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        return len(self.runs.rows)

    @property
    def cursor(self) -> int:
        """Index of the run under the cursor, or -1."""
        for name in (self._under_cursor, self.store.selected):
            index = next((i for i, row in enumerate(self.runs.rows) if name is not None and row.name == name), -1)
            if index >= 0:
                return index
        return -1

    def move_to(self, index: int, by: int) -> None:
        """Move the cursor at once. A held key repeats faster than a run can be shown."""
        self._under_cursor = self.runs.rows[index].name
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(REST_S, self._choose)

    def _choose(self) -> None:
        """The cursor rests. It stays where it is until the app has selected the run: a key may come before."""
        self._rest = None
        if self._under_cursor is not None and self._under_cursor != self.store.selected:
            self.post_message(self.RunChosen(self._under_cursor))

    @property
    def on_screen(self) -> Sequence[RunRow]:
        """The runs on the screen."""
        top = round(self.scroll_offset.y)
        return self.runs.rows[top : top + max(0, self.scrollable_content_region.height - self.head - self.foot)]

    def settle(self) -> str | None:
        """The run that is to be selected because the cursor has moved to it, once; None if it has not moved."""
        name, self._under_cursor = self._under_cursor, None
        if self._rest is not None:
            self._rest.stop()
            self._rest = None
        return name if name != self.store.selected else None

    def select_a_shown_run(self) -> None:
        """Select a run that matches the filter: keys act on the selected run, so it must be on the screen."""
        if self.runs.rows and self.cursor < 0:
            self.action_move(0)

    def clicked(self, index: int) -> None:
        self.post_message(self.RunChosen(self.runs.rows[index].name))

    def head_clicked(self, y: int, x: int) -> None:
        for start, end, column in self._spans:
            if y == 0 and start <= x < end:
                self.post_message(self.Sorted(column))

    # lines ---------------------------------------------------------------------------------------------

    @property
    def head(self) -> int:
        return int(self.scrollable_content_region.height >= HEAD_FROM)

    @property
    def foot(self) -> int:
        has_room = self.scrollable_content_region.height >= FOOT_FROM
        return int(has_room and bool(self.runs.names.same or self.runs.names.short))

    def empty(self) -> Text:
        if self.runs.mistake is not None:
            return Text(" no runs match the rest of the filter")
        return Text(f" {self.runs.nothing(self.store)}" if self.store.runs else "")

    def head_line(self, y: int, width: int) -> Text:
        return self._about_names(width) if y < 0 else self._heading(width)

    def _about_names(self, width: int) -> Text:
        names, text = self.runs.names, Text(no_wrap=True)
        if names.short:
            what = "full names" if self.runs.full_names else "names: what differs between the runs shown"
            other = "what differs" if self.runs.full_names else "full names"
            text.append(f"{what} ({other}: {self.key('full_names')})")
        same = f"the same in all: {names.same}" if names.same else ""
        gap = width - text.cell_len - len(same)
        if same and gap < 2:
            text, gap = Text(no_wrap=True), max(0, width - len(same))
        text.append(" " * gap + same)
        text.stylize(self.get_component_rich_style("list--muted", partial=True))
        return text

    def _heading(self, width: int) -> Text:
        columns, name_width = self._columns(width)
        runs, text = self.runs, Text(no_wrap=True)
        text.append(" " * (self._margin - 1))
        self._spans = []

        def add(column: str, title: str, cells: int, is_left: bool) -> None:
            arrow = runs.order.arrow if runs.order.column == column else ""
            shown = f"{title}{arrow}"
            start = text.cell_len
            text.append(padded(shown, cells) if is_left else shown.rjust(cells), style="bold" if arrow else "")
            self._spans.append((start, text.cell_len, column))

        add("name", " name", name_width + 1, True)
        for column, cells in columns:
            text.append(" " * GAP)
            add(column.id, column.title, cells, column.is_left)
        text.stylize_before(self.get_component_rich_style("list--muted", partial=True))
        return text

    @property
    def _margin(self) -> int:
        """Cells before the name."""
        return 3 if self.store.marks else 2

    def made_of(self, index: int) -> object:
        store, row, runs = self.store, self.runs.rows[index], self.runs
        if row.is_live or row.name == store.selected:  # its step, time and cost are the app's
            return None
        return (
            row, short_age(store.row_age(row)), store.row_tone(row), runs.name(row.name), self._laid_out[1:],
            runs.facts.version, runs.trends.version, store.price_per_hour, store.marks and row.name in store.marks,
            bool(store.marks), self.in_blocks, self.app.theme,
        )  # fmt: skip

    def line(self, index: int, width: int) -> Text:
        store, row, cells_of = self.store, self.runs.rows[index], self.cells
        rest = "" if row.is_live else self.get_component_rich_style("list--muted", partial=True)

        def style_of(tone: str) -> Style:
            return self.get_component_rich_style(f"runs--{tone}", partial=True)

        glyph, _, tone = state_label(row.shown_state, row.host)
        columns, name_width = self._columns(width)
        text = Text(no_wrap=True)
        if store.marks:
            text.append("*" if row.name in store.marks else " ", style=style_of("good"))
        text.append(f"{glyph} ", style=style_of(tone))
        name = fitting_name(self.runs.name(row.name), name_width)
        text.append(padded(name, name_width), style="bold" if row.is_live else "")
        for column, cells in columns:
            found = shortened(column.text(cells_of, row), cells)
            if column.id == "trend" and self.in_blocks:
                found = bars_in_blocks(found)
            style = rest
            if column.id == "state":
                style = style_of(tone)
            elif column.id == "age" and (age_tone := store.row_tone(row)) in ("warn", "bad"):
                style = style_of(age_tone)
            text.append(" " * GAP)
            room = " " * (cells - cell_len(found))
            text.append(found + room if column.is_left else room + found, style=style)
        return text

    def _columns(self, width: int) -> tuple[list[tuple[Column, int]], int]:
        """The columns that fit with their widths, and the width of the name."""
        runs, store = self.runs, self.store
        key = (runs.version, runs.columns, runs.order, runs.full_names, store.step, store.selected, width, self._margin)
        if key != self._laid_out[0]:
            widths = runs.widths(self.cells)
            shown = {column.id: column for column in runs.shown_columns() if column.id in widths}
            room = width - self._margin
            wanted = min(NAME_WANTED, max(6, widths["name"]))
            sized = [Sized(column.id, widths[column.id], column.rank) for column in shown.values()]
            kept = fit(sized, room, min(NAME_LEAST, wanted), wanted, FIRM)
            left = room - sum(GAP + column.width for column in kept)
            name = max(1, min(left, max(widths["name"], NAME_LEAST)))
            self._laid_out = (key, [(shown[column.id], column.width) for column in kept], name)
        return self._laid_out[1], self._laid_out[2]
