"""The list of runs. The one under the cursor is the selected one, whatever happens above it in the list."""

from __future__ import annotations

import re
from typing import ClassVar

from rich.text import Text
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from grpo_tui.model.formatting import Freshness, figure, fitted, metric, printable, short_age, shortened, state_words
from grpo_tui.model.store import RunRow, Store
from grpo_tui.widgets.panel import TONES, ScrollPanel, toned

_STAMP = re.compile(r"run_\d{4}-(\d\d-\d\d)_(\d\d)-(\d\d)-(\d\d)")


class RunsPanel(ScrollPanel):
    """One line a run: glyph, name, step/total, reward, state, age."""

    COMPONENT_CLASSES: ClassVar = {"runs--cursor", "runs--cursor-blurred", "runs--muted", "runs--bad", "runs--warn"}
    COMPONENT_CLASSES |= {f"runs--{tone}" for tone in TONES}
    BINDINGS: ClassVar = [
        ("up", "move(-1)"),
        ("down", "move(1)"),
        ("home", "move(-100000)"),
        ("end", "move(100000)"),
        ("pageup", "move(-10)"),
        ("pagedown", "move(10)"),
    ]

    class RunChosen(Message):
        """The cursor came to rest on a run."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(store, id=id)
        self.filter = ""
        self._rows: list[RunRow] = []

    def state(self) -> object:
        ages = tuple(short_age(self.store.row_age(row)) for row in self._rows)
        tones = tuple(self.store.row_tone(row) for row in self._rows)
        return (
            self.store.versions["runs"], self.store.versions["link"], self.store.selected, self.store.step,
            self.filter, ages, tones, self.size, self.app.theme, self.has_focus,
        )  # fmt: skip

    @property
    def rows(self) -> list[RunRow]:
        """The runs that pass the filter."""
        words = self.filter.lower().split()
        return [
            row for row in self.store.runs or () if all(word in f"{row.name} {row.state}".lower() for word in words)
        ]

    def refresh_titles(self) -> None:
        rows = self.store.runs or []
        title: str | Content = f"runs [$text-muted]{len(self._rows)}[/]" if rows else "runs"
        if self.filter:
            title = Content.from_markup(
                f"runs [$warning]/$filter[/] [$text-muted]{len(self._rows)} of {len(rows)}[/]", filter=self.filter
            )
        fresh = Freshness("link lost", "bad") if not self.store.connected and rows else Freshness()
        self.set_titles(title, toned(fresh))

    def tick(self) -> None:
        self._rows = self.rows
        super().tick()

    def content_changed(self) -> None:
        self.virtual_size = Size(1, len(self._rows))
        self._show_cursor()
        self.refresh()

    @property
    def cursor(self) -> int:
        """Index of the selected run in the list, or -1."""
        return next((i for i, row in enumerate(self._rows) if row.name == self.store.selected), -1)

    def action_move(self, by: int) -> None:
        if self._rows:
            at = min(len(self._rows) - 1, max(0, self.cursor + by))
            self.post_message(self.RunChosen(self._rows[at].name))

    def choose_a_shown_one(self) -> None:
        """After filtering: the keys act on the selected run, so it must be one of those on the screen."""
        if self._rows and self.cursor < 0:
            self.action_move(0)

    def on_click(self, event: events.Click) -> None:
        index = event.get_content_offset_capture(self).y + round(self.scroll_offset.y)
        if 0 <= index < len(self._rows):
            self.post_message(self.RunChosen(self._rows[index].name))

    def on_resize(self) -> None:
        self._show_cursor()

    def _show_cursor(self) -> None:
        height, top = self.scrollable_content_region.height, round(self.scroll_offset.y)
        at = self.cursor
        if at < 0 or height < 1:
            return
        if not top <= at < top + height:
            self.scroll_to(y=max(0, at - height // 2), animate=False, force=True, immediate=True)

    # paint ---------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_offset.y)
        if index >= len(self._rows):
            return self._blank(y, width)
        row = self._rows[index]
        style = self.rich_style
        if row.name == self.store.selected:
            style += self.get_component_rich_style("runs--cursor" if self.has_focus else "runs--cursor-blurred")
        text = self._line(row, width)
        text.truncate(width, overflow="ellipsis", pad=True)
        segments = list(text.render(self.app.console))
        return Strip(segments).adjust_cell_length(width, style).apply_style(style)

    def _line(self, row: RunRow, width: int) -> Text:
        part = {tone: self.get_component_rich_style(f"runs--{tone}", partial=True) for tone in TONES}
        muted = self.get_component_rich_style("runs--muted", partial=True)
        glyph, word, tone = state_words(row.state, row.host)
        step = self.store.step if row.name == self.store.selected else row.step
        steps = f"{step}/{row.total_steps}" if row.total_steps is not None else str(step)
        reward = metric(row.reward)  # of fixed decimals: it must not jump about
        reward = reward if len(reward) <= 6 else figure(row.reward, 6)
        age, age_tone = short_age(self.store.row_age(row)), self.store.row_tone(row)
        wide = width >= 58
        fixed = 2 + 8 + 7 + 5 + (12 if wide else 0)
        name_width = max(6, width - fixed - 1)
        name = _shorten(row.name, name_width)
        text = Text(no_wrap=True)
        text.append(f"{glyph} ", style=part[tone])
        text.append(fitted(name, name_width), style="bold" if row.is_live else "")
        if wide:
            text.append(f" {word:<11.11}", style=part[tone])
        text.append(f"{steps:>8}")
        text.append(f"{reward:>7}", style="" if row.is_live else muted)
        text.append(f"{age:>5}", style=part[age_tone] if age_tone in ("warn", "bad") else muted)
        return text

    def _blank(self, y: int, width: int) -> Strip:
        style = self.rich_style
        words = ""
        if y == 0 and self.store.runs:
            words = f"no run matches /{self.filter}"
        elif y == 0 and self.store.runs is not None:
            words = "none yet"
        text = Text()
        text.append(f" {words}"[:width], style=self.get_component_rich_style("runs--muted", partial=True))
        return Strip(list(text.render(self.app.console))).adjust_cell_length(width, style).apply_style(style)


def _shorten(name: str, width: int) -> str:
    """A name that fits; one that is a time becomes one."""
    if len(name) > width and (match := _STAMP.fullmatch(name)):
        words = f"{match[1]} {match[2]}:{match[3]}:{match[4]}"
        return words if len(words) <= width else words[:11]
    return shortened(printable(name), width)
