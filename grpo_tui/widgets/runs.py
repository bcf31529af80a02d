"""The list of runs. The cursor stays on its run when the list changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

from rich.text import Text
from textual.content import Content
from textual.message import Message
from textual.timer import Timer

from grpo_train.run_dir.display import duration, state_label
from grpo_tui.model.formatting import compact_number, metric_value, padded, short_age, shortened
from grpo_tui.model.run_row import RunRow
from grpo_tui.model.store import Freshness, Store
from grpo_tui.widgets.list_panel import ListPanel
from grpo_tui.widgets.panel import TONES, toned

REST_S = 0.1
"""The run under the cursor is selected once the cursor has not moved for this long."""
_STAMP = re.compile(r"run_\d{4}-(\d\d-\d\d)_(\d\d)-(\d\d)-(\d\d)")


NAME_LEAST = len("11-20 22:10")
NAME_WANTED = len("run_2026-11-20_22-10-41")
STEPS_WIDTH, REWARD_WIDTH, AGE_WIDTH = 8, 7, 5
STATE_LEAST, STATE_MOST = 11, 18


@dataclass(frozen=True)
class Columns:
    """Width of each column in cells; 0 if it is left out."""

    name: int
    state: int = 0
    steps: int = 0
    reward: int = 0
    age: int = 0


class RunsPanel(ListPanel):
    """One line per run: state, name, step/total, reward, age. A marked run has a ``*``."""

    COMPONENT_CLASSES: ClassVar = {f"runs--{tone}" for tone in TONES}

    class RunChosen(Message):
        """The cursor moved to a run."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(store, id=id)
        self.filter = ""
        self._rows: list[RunRow] = []
        self._under_cursor: str | None = None
        """The run under the cursor until it is the selected one, which it becomes once the cursor rests."""
        self._rest: Timer | None = None
        self._columns_of: tuple[object, Columns] = (None, Columns(0))
        self._rows_of: object = None
        """Store, version and filter that the rows were made of: there may be 10,000."""

    def state(self) -> object:
        top = round(self.scroll_offset.y)
        shown = self._rows[top : top + self.size.height]
        ages = tuple(short_age(self.store.row_age(row)) for row in shown)
        tones = tuple(self.store.row_tone(row) for row in shown)
        return (
            self.store.versions["runs"], self.store.versions["link"], self.store.selected, self.cursor,
            self.store.step, self.filter, top, ages, tones, self.size, self.app.theme, self.has_focus,
            tuple(self.store.marks),
        )  # fmt: skip

    @property
    def rows(self) -> list[RunRow]:
        """The runs that match every word of the filter."""
        words = self.filter.lower().split()
        return [
            row
            for row in self.store.runs or ()
            if all(word in f"{row.name} {row.shown_state}".lower() for word in words)
        ]

    def refresh_titles(self) -> None:
        rows = self.store.runs or []
        title: str | Content = f"runs [$text-muted]{len(self._rows)}[/]" if rows else "runs"
        if self.filter:
            title = Content.from_markup(
                f"runs [$warning]/$filter[/] [$text-muted]{len(self._rows)} of {len(rows)}[/]", filter=self.filter
            )
        fresh = Freshness(self.store.topic_problem("runs"), "warn")
        if self.store.recalled_at is not None:
            fresh = Freshness(f"as it was {duration(self.store.now() - self.store.recalled_at)} ago", "warn")
        elif not self.store.connected and rows:
            fresh = Freshness("link lost", "bad")
        below = toned(fresh)
        if self.filter and not fresh.text:
            below = Content.from_markup("[$text-muted]$key: show all[/]", key=self.key("back"))
        if count := len(self.store.marks):
            compares = f": {self.key('compare')} compares them" if count > 1 else ""
            text = f"{count} marked (*){compares}"
            marked = Content.from_markup("[$primary]$text[/]", text=text)
            below = Content("  ").join([marked, below]) if below else marked
        self.set_titles(title, below)

    def tick(self) -> None:
        key = (self.store, self.store.versions["runs"], self.filter)
        if key != self._rows_of:
            self._rows_of, self._rows = key, self.rows
        if self._rest is None and self._under_cursor == self.store.selected:
            self._under_cursor = None
        super().tick()

    @property
    def count(self) -> int:
        return len(self._rows)

    @property
    def cursor(self) -> int:
        """Index of the run under the cursor, or -1."""
        for name in (self._under_cursor, self.store.selected):
            index = next((i for i, row in enumerate(self._rows) if name is not None and row.name == name), -1)
            if index >= 0:
                return index
        return -1

    def move_to(self, index: int, by: int) -> None:
        """Move the cursor at once. A held key repeats faster than a run can be shown."""
        self._under_cursor = self._rows[index].name
        if self._rest is not None:
            self._rest.stop()
        self._rest = self.set_timer(REST_S, self._choose)

    def _choose(self) -> None:
        """The cursor rests. It stays where it is until the app has selected the run: a key may come before."""
        self._rest = None
        if self._under_cursor is not None and self._under_cursor != self.store.selected:
            self.post_message(self.RunChosen(self._under_cursor))

    def settle(self) -> str | None:
        """The run that is to be selected because the cursor has moved to it, once; None if it has not moved."""
        name, self._under_cursor = self._under_cursor, None
        if self._rest is not None:
            self._rest.stop()
            self._rest = None
        return name if name != self.store.selected else None

    def select_a_shown_run(self) -> None:
        """Select a run that matches the filter: keys act on the selected run, so it must be on the screen."""
        if self._rows and self.cursor < 0:
            self.action_move(0)

    def clicked(self, index: int) -> None:
        self.post_message(self.RunChosen(self._rows[index].name))

    def empty(self) -> Text:
        return Text(f" no runs match /{self.filter}" if self.store.runs else "")

    def line(self, index: int, width: int) -> Text:
        return self._line(self._rows[index], width)

    def _line(self, row: RunRow, width: int) -> Text:
        styles = {tone: self.get_component_rich_style(f"runs--{tone}", partial=True) for tone in TONES}
        muted = self.get_component_rich_style("list--muted", partial=True)
        glyph, word, tone = state_label(row.shown_state, row.host)
        text = Text(no_wrap=True)
        if self.store.marks:
            text.append("*" if row.name in self.store.marks else " ", style=styles["good"])
        columns = self._columns(width - len(text))
        text.append(f"{glyph} ", style=styles[tone])
        text.append(padded(short_name(row.name, columns.name), columns.name), style="bold" if row.is_live else "")
        if columns.state:
            text.append(f" {padded(shortened(word, columns.state - 1), columns.state - 1)}", style=styles[tone])
        if columns.steps:
            text.append(f"{self._steps(row):>{columns.steps}}")
        if columns.reward:
            reward = metric_value(row.reward)
            reward = reward if len(reward) < REWARD_WIDTH else compact_number(row.reward, REWARD_WIDTH - 1)
            text.append(f"{reward:>{columns.reward}}", style="" if row.is_live else muted)
        if columns.age:
            age, age_tone = short_age(self.store.row_age(row)), self.store.row_tone(row)
            text.append(f"{age:>{columns.age}}", style=styles[age_tone] if age_tone in ("warn", "bad") else muted)
        return text

    def _steps(self, row: RunRow) -> str:
        step = self.store.step if row.name == self.store.selected else row.step
        return f"{step}/{row.total_steps}" if row.total_steps is not None else str(step)

    def _columns(self, width: int) -> Columns:
        key = (self._rows_of, self.store.step, self.store.selected, width)
        if key != self._columns_of[0]:
            rows = self._rows
            step = max((row.step for row in rows), default=0)
            total = max((row.total_steps for row in rows if row.total_steps is not None), default=None)
            words = {state_label(state, host)[1] for state, host in {(row.shown_state, row.host) for row in rows}}
            columns = columns_of(
                width,
                name=max((len(row.name) for row in rows), default=0),
                state=max(map(len, words), default=0),
                steps=len(str(max(step, self.store.step))) + (1 + len(str(total)) if total is not None else 0),
            )
            self._columns_of = (key, columns)
        return self._columns_of[1]


def columns_of(width: int, *, name: int, state: int, steps: int) -> Columns:
    """Widths for the longest name, state and steps of the list. What does not fit is left out, the least telling first:
    the state (its glyph stays), the age, the reward, the steps."""
    wanted = {"steps": max(STEPS_WIDTH, steps + 1), "reward": REWARD_WIDTH, "age": AGE_WIDTH}
    shown: dict[str, int] = {}
    room = width - len("● ") - 1
    for column, needed in wanted.items():
        if NAME_LEAST + sum(shown.values()) + needed > room:
            break
        shown[column] = needed
    state = min(STATE_MOST, max(STATE_LEAST, state)) + 1
    if max(6, min(NAME_WANTED, name)) + sum(shown.values()) + state <= room and len(shown) == len(wanted):
        shown["state"] = state
    return Columns(name=max(6, room - sum(shown.values())), **shown)


def short_name(name: str, width: int) -> str:
    """A name that fits. A default name, which is a time, becomes that time."""
    if len(name) > width and (match := _STAMP.fullmatch(name)):
        time = f"{match[1]} {match[2]}:{match[3]}:{match[4]}"
        return time if len(time) <= width else time[:11]
    return shortened(name, width)
