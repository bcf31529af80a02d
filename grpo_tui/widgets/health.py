"""The run's health: one line on home with the worst that the latest step says, and the page behind it."""

from __future__ import annotations

from rich.text import Text
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from grpo_train.run_dir.files import to_float
from grpo_tui.model.formatting import metric, one_line
from grpo_tui.model.health import Condition
from grpo_tui.model.store import Store
from grpo_tui.widgets.lines_panel import Palette
from grpo_tui.widgets.sources import MARKS, wrapped

_COLOURS = {"bad": "$error", "warn": "$warning", "muted": "$text-muted"}
_FIGURES = (
    "groups", "hacking", "sandbox", "self_play", "code_game", "scheduling", "ess", "clip_ratio", "mismatch", "gns",
)  # fmt: skip
"""Families of metrics (``ess/token`` is of ``ess``) that bear on health and have no chart; the task's own come early,
for home shows six lines of the page."""
_MARGIN = 12
_APART = 3
"""Cells between two figures of a line."""


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
        """Lines for each family of figures in the newest row; ``tictactoe/X/reward`` stands with ``tictactoe/X``."""
        row = self.store.logs.rows.last if self.store.logs else None
        families: dict[tuple[int, str], list[Text]] = {}
        for key, value in (row.fields if row else {}).items():
            family, _, name = key.partition("/")
            figure = to_float(value)
            if family not in _FIGURES or not name or (figure is None and not isinstance(value, str)):
                continue
            part, _, name = name.rpartition("/")
            told = one_line(str(value)[:40]) if figure is None else metric(figure)
            words = Text(f"{one_line(name)} ", style=palette["muted"], no_wrap=True)
            words.append(told, style=palette["faint"] if figure == 0 or figure != figure else "bold")
            families.setdefault((_FIGURES.index(family), one_line(part)), []).append(words)
        lines: list[Text] = []
        before = -1
        for (at, part), figures in sorted(families.items(), key=lambda item: item[0]):
            if part:
                figures.insert(0, Text(part, style=palette["muted"]))
            head = _FIGURES[at] if at != before else ""
            lines += _headed(head, _side_by_side(figures, width - _MARGIN), palette)
            before = at
        return lines


def _toned(one: Condition, palette: Palette) -> Text:
    """A sentence behind the mark of its tone; an alarm's or a warning's first word has the tone's colour."""
    text = Text()
    if one.tone == "muted":
        return text.append(f"{MARKS[one.tone]} {one.sentence}", style=palette["muted"])
    first, colon, more = one.sentence.partition(":")
    return text.append(f"{MARKS[one.tone]} {first}{colon}", style=f"bold {palette[one.tone]}").append(more)


def _side_by_side(figures: list[Text], width: int) -> list[Text]:
    """Figures on as few lines as hold them; a name and its value are never parted."""
    lines: list[Text] = []
    for figure in figures:
        if lines and lines[-1].cell_len + _APART + figure.cell_len <= width:
            lines[-1].append(" " * _APART).append_text(figure)
        else:
            lines.append(Text(no_wrap=True).append_text(figure))
    return lines


def _entry(head: str, words: Text, width: int, palette: Palette) -> list[Text]:
    """Words, wrapped, beside a margin that has their head."""
    return _headed(head, wrapped(words, width - _MARGIN), palette)


def _headed(head: str, lines: list[Text], palette: Palette) -> list[Text]:
    """Lines beside a margin that has their head."""
    entries = []
    for index, line in enumerate(lines):
        entry = Text(no_wrap=True)
        entry.append(f"{'' if index else head:<{_MARGIN}}", style=palette["muted"])
        entries.append(entry.append_text(line))
    return entries
