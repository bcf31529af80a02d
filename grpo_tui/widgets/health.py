"""The run's health: one line on home with the worst that the latest step says, and the page behind it."""

from __future__ import annotations

from rich.text import Text
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from grpo_train.files import number as number_of
from grpo_tui.health import Condition
from grpo_tui.store import Store
from grpo_tui.widgets.lines_panel import Palette
from grpo_tui.widgets.sources import MARKS, wrapped
from grpo_tui.words import metric, one_line

_COLOURS = {"bad": "$error", "warn": "$warning", "muted": "$text-muted"}
_FIGURES = (
    "groups", "ess", "clip_ratio", "mismatch", "gns", "hacking", "sandbox", "self_play", "code_game", "scheduling",
)  # fmt: skip
"""Families of metrics (``ess/token`` is of ``ess``) that bear on health and have no chart."""
_MARGIN = 12


class HealthLine(Widget):
    """``▲ warning: 62% of the groups teach nothing (…)  +2``; a click opens the page with all of it."""

    class Opened(Message):
        """The line was clicked."""

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(id=id)
        self.store = store
        self._seen: object = None

    def wanted(self, has_room: bool) -> bool:
        """Whether it takes its row.

        Where there is room, a run that logs its health keeps the row though it be empty: a remark comes and goes from
        step to step, and the screen must not jump with it. Elsewhere only an alarm or a warning is worth a row.
        """
        logs = self.store.logs
        return logs is not None and (logs.health.is_logged if has_room else logs.health.tone != "muted")

    def tick(self) -> None:
        logs = self.store.logs
        state = (logs.run, logs.version["train_log"]) if logs else None
        if self.display and state != self._seen:
            self._seen = state
            self.refresh()

    def render(self) -> Content:
        now = self.store.logs.health.now if self.store.logs else []
        if not now:
            return Content()
        colour = _COLOURS[now[0].tone]
        more = Content.from_markup(f"[$text-muted]  +{len(now) - 1}[/]" if len(now) > 1 else "")
        words = Content.from_markup(f" [{colour}]{MARKS[now[0].tone]} $sentence[/]", sentence=now[0].sentence)
        return words.truncate(max(1, self.size.width - more.cell_length), ellipsis=True) + more

    def on_click(self) -> None:
        self.post_message(self.Opened())


class HealthSource:
    """Every sentence with the step since when it holds, what held before, and the figures behind them."""

    title, follows, empty = "health", False, "no word of its health"

    def __init__(self, store: Store) -> None:
        self.store = store
        self._page: tuple[object, list[Text]] = (None, [])

    def state(self) -> object:
        logs = self.store.logs
        return (logs.run, logs.version["train_log"]) if logs else None

    def bounds(self, width: int) -> tuple[int, int]:
        return 0, len(self._lines(width, Palette()))

    def line(self, number: int, width: int, palette: Palette) -> Text:
        lines = self._lines(width, palette)
        return lines[number].copy() if number < len(lines) else Text()

    def _lines(self, width: int, palette: Palette) -> list[Text]:
        logs = self.store.logs
        if logs is None or width < 2 * _MARGIN:
            return []
        key = (self.state(), width, tuple(palette.items()))
        if key != self._page[0]:
            parts = [self._now(width, palette), self._past(width, palette), self._figures(width, palette)]
            lines = [line for part in parts if part for line in (Text(), *part)][1:]
            self._page = (key, lines)
        return self._page[1]

    def _now(self, width: int, palette: Palette) -> list[Text]:
        health = self.store.logs.health if self.store.logs else None
        if health is None or not health.is_logged:
            return []
        if not health.now:
            return [Text("✔ nothing stands out", style=palette["good"])]
        lines: list[Text] = []
        for one in health.now:
            lines += _entry(f"since {one.since}", _toned(one, palette), width, palette)
        return lines

    def _past(self, width: int, palette: Palette) -> list[Text]:
        lines: list[Text] = []
        for one in self.store.logs.health.past if self.store.logs else ():
            words = Text().append(f"{MARKS[one.tone]} {one.sentence}", style=palette["muted"])
            if one.steps > 1:
                words.append(f" · in {one.steps} steps from {one.first} on", style=palette["faint"])
            lines += _entry(f"last {one.last}", words, width, palette)
        return lines

    def _figures(self, width: int, palette: Palette) -> list[Text]:
        """A line for each family of figures in the newest row."""
        row = self.store.logs.rows.last if self.store.logs else None
        fields, lines = row.fields if row else {}, []
        for family in _FIGURES:
            words = Text()
            for key, value in fields.items():
                if not key.startswith(f"{family}/"):
                    continue
                figure = number_of(value)
                if figure is None and not isinstance(value, str):
                    continue
                told = one_line(str(value)[:40]) if figure is None else metric(figure)
                words.append(f"{one_line(key.partition('/')[2])} ", style=palette["muted"])
                words.append(f"{told}   ", style="bold" if figure == figure else palette["faint"])
            words.rstrip()
            if words:
                lines += _entry(family, words, width, palette)
        return lines


def _toned(one: Condition, palette: Palette) -> Text:
    """A sentence behind the mark of its tone; an alarm's or a warning's first word has the tone's colour."""
    text = Text()
    if one.tone == "muted":
        return text.append(f"{MARKS[one.tone]} {one.sentence}", style=palette["muted"])
    first, colon, more = one.sentence.partition(":")
    return text.append(f"{MARKS[one.tone]} {first}{colon}", style=f"bold {palette[one.tone]}").append(more)


def _entry(head: str, words: Text, width: int, palette: Palette) -> list[Text]:
    """Words beside a margin that has their head."""
    lines = []
    for index, line in enumerate(wrapped(words, width - _MARGIN)):
        entry = Text(no_wrap=True)
        entry.append(f"{'' if index else head:<{_MARGIN}}", style=palette["muted"])
        lines.append(entry.append_text(line))
    return lines
