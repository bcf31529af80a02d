"""The list of runs. The cursor stays on its run when the list changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from rich.style import Style
from rich.text import Text
from textual.content import Content
from textual.message import Message
from textual.timer import Timer

from grpo_train.run_dir.display import duration
from grpo_tui.box.formatting import Sized, fit, short_age
from grpo_tui.box.rows import RunRow
from grpo_tui.box.run_columns import NOTE_WIDTH, column, fitting_name
from grpo_tui.box.run_facts import MOST_RUNS
from grpo_tui.box.run_list import RunList
from grpo_tui.box.store import Freshness, Store
from grpo_tui.kit.lists import Cell, TablePanel
from grpo_tui.kit.panel import TONES, from_markup, toned
from grpo_tui.kit.plot import bars_in_blocks
from remote.protocol.backups import ALL_RUNS

REST_S = 0.1
"""The run under the cursor is selected once the cursor has not moved for this long."""
NAME_LEAST = len("11-20 22:10")
NAME_WANTED = len("run_2026-11-20_22-10-41")
FIRM = 2
"""Columns up to this rank leave the name only NAME_LEAST cells."""
HEAD_FROM, FOOT_FROM = 4, 6
"""Lines of the panel from which it has a heading, and a line about the names."""


class RunsPanel(TablePanel):
    """One line per run, with the columns that fit. A marked run has a ``*``."""

    COMPONENT_CLASSES: ClassVar = {f"runs--{tone}" for tone in TONES}

    class RunChosen(Message):
        """The cursor moved to a run; None: the filter leaves none to choose."""

        def __init__(self, name: str | None) -> None:
            super().__init__()
            self.name = name

    def __init__(self, store: Store, runs: RunList, *, id: str) -> None:
        super().__init__(store, id=id)
        self.runs = runs
        self._under_cursor: str | None = None
        """The run under the cursor until it is the selected one, which it becomes once the cursor rests."""
        self._before: str | None = None
        """The run that was selected before a filter left none."""
        self._rest: Timer | None = None
        self._laid_out: tuple[object, list[Sized]] = (None, [])
        """What the layout is made of, and the columns that fit."""

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
            by = f"sorted by {column(order.column).title} {order.arrow}"
            title += from_markup(" [$text-muted]· $by[/]", by=by)
        fresh = Freshness(self.store.topic_problem("runs"), "warn")
        if self.store.recalled_at is not None:
            fresh = Freshness(f"as it was {duration(self.store.now() - self.store.recalled_at)} ago", "warn")
        elif not self.store.connected and rows:
            fresh = Freshness("link lost", "bad")
        below = toned(fresh)
        if away := self._live_away():
            text = f"● {runs.name(away[0].name)} {column('step').text(runs.cells(self.store), away[0])}"
            more = f" and {len(away) - 1} more" if len(away) > 1 else ""
            below = Content("  ").join(
                [from_markup("[$success]$text[/]", text=text + more), *([below] if below else [])]
            )
        elif runs.filter and not fresh.text:
            below = from_markup("[$text-muted]$key: show all[/]", key=self.key("back"))
        if unknown := runs.unknown(self.store):
            text = f"▲ config and metrics of the newest {MOST_RUNS:,} runs only, not of {unknown:,} older ones"
            told = from_markup("[$warning]$text[/]", text=text)
            below = Content("  ").join([told, below]) if below else told
        if self.store.sessions_of(ALL_RUNS):
            told = from_markup("[$primary]↑ backing up all runs[/]")
            below = Content("  ").join([told, below]) if below else told
        if count := len(self.store.marks):
            compares = f": {self.key('compare')} compares them" if count > 1 else ""
            text = f"{count} marked (*){compares}"
            marked = from_markup("[$primary]$text[/]", text=text)
            below = Content("  ").join([marked, below]) if below else marked
        self.set_titles(title, below)

    def _has_heading(self, column: str) -> bool:
        return bool(self.head) and any(one.id == column for one in self._laid_out[1])

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

    def _live_away(self) -> list[RunRow]:
        """The live runs that are listed and not on the screen."""
        shown = {row.name for row in self.on_screen}
        return [row for row in self.runs.rows if row.is_live and row.name not in shown] if shown else []

    def settle(self) -> str | None:
        """The run that is to be selected because the cursor has moved to it, once; None if it has not moved."""
        name, self._under_cursor = self._under_cursor, None
        if self._rest is not None:
            self._rest.stop()
            self._rest = None
        return name if name != self.store.selected else None

    def select_a_shown_run(self) -> None:
        """Select a run that matches the filter, or none: keys act on the selected run, so it must be on the screen."""
        if not self.runs.rows and self.runs.filter:
            self._before = self.store.selected or self._before
            self.post_message(self.RunChosen(None))
        elif self.store.selected is None and any(row.name == self._before for row in self.runs.rows):
            self.post_message(self.RunChosen(self._before))
        elif self.runs.rows and self.cursor < 0:
            self.action_move(0)

    def clicked(self, index: int) -> None:
        self.post_message(self.RunChosen(self.runs.rows[index].name))

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
        text = self._about_names(width) if y < 0 else self.heading(width)
        text.stylize_before(self.muted)
        return text

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
        return text.append(" " * gap + same)

    @property
    def margin(self) -> int:
        """Cells before the name."""
        return 3 if self.store.marks else 2

    def made_of(self, index: int) -> object:
        store, row, runs = self.store, self.runs.rows[index], self.runs
        if row.is_live or row.name == store.selected:  # its step, time and cost are the app's
            return None
        return (
            row, short_age(store.row_age(row)), store.row_tone(row), runs.name(row.name), self._laid_out[1],
            runs.facts.version, runs.trends.version, store.price_per_hour, store.marks and row.name in store.marks,
            bool(store.marks), self.in_blocks,
        )  # fmt: skip

    @property
    def sorted_by(self) -> tuple[str, str]:
        return self.runs.order.column, self.runs.order.arrow

    def _tone(self, tone: str) -> Style:
        return self.get_component_rich_style(f"runs--{tone}", partial=True)

    def before(self, index: int) -> Text:
        store, row, text = self.store, self.runs.rows[index], Text(no_wrap=True)
        if store.marks:
            text.append("*" if row.name in store.marks else " ", style=self._tone("good"))
        return text.append(f"{row.label[0]} ", style=self._state_tone(row))

    def _state_tone(self, row: RunRow) -> Style:
        """The color of a state; not green without a link: it may be over by now."""
        return self._tone("rest" if row.is_live and not self.store.connected else row.label[2])

    def cells(self, index: int, columns: Sequence[Sized]) -> Iterator[Cell]:
        row, cells = self.runs.rows[index], self.runs.cells(self.store)
        rest = "" if row.is_live else self.muted
        for one in columns:
            if one.id == "name":
                yield fitting_name(self.runs.name(row.name), one.width), "bold" if row.is_live else ""
                continue
            text, style = column(one.id).text(cells, row), rest
            if one.id == "note" and len(text) > one.width:  # shortened() cuts in the middle
                text = text[: one.width - 1] + "…"
            if one.id == "trend" and self.in_blocks:
                text = bars_in_blocks(text)
            elif one.id == "state":
                style = self._state_tone(row)
            elif one.id == "verdict" and row.verdict is not None:
                style = self._tone(row.verdict.tone)
            elif one.id == "age" and (tone := self.store.row_tone(row)) in ("warn", "bad"):
                style = self._tone(tone)
            yield text, style

    @staticmethod
    def _width(column: str, longest: int) -> int:
        return min(NOTE_WIDTH, longest) if column == "note" else longest

    def columns(self, width: int) -> Sequence[Sized]:
        runs, store = self.runs, self.store
        key = (
            runs.version,
            runs.trends.version,
            runs.columns,
            runs.order,
            runs.full_names,
            store.step,
            store.selected,
            width,
        )
        if key != self._laid_out[0]:
            widths = runs.widths(runs.cells(store))
            shown = {one.id: one for one in runs.shown_columns() if one.id in widths}
            others = [
                Sized(one.id, self._width(one.id, widths[one.id]), one.rank, one.title, one.is_left)
                for one in shown.values()
            ]
            name = Sized("name", max(widths["name"], NAME_LEAST), title="name", is_left=True)
            wanted = min(NAME_WANTED, max(6, widths["name"]))
            found = fit(name, others, width, min(NAME_LEAST, wanted), wanted, FIRM)
            if found[-1].id == "note":
                used = sum(one.width + one.gap for one in found) - found[0].gap
                found[-1] = replace(found[-1], width=min(widths["note"], found[-1].width + width - used))
            self._laid_out = (key, found)
        return self._laid_out[1]
