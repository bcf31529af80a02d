"""The virtual list of a log or a page: it follows its end, and does not move while the reader has scrolled up.

Textual's log widgets scroll to the end on every write, or shift once they are full; here the scroll position is the
index of a line. Only visible lines are formatted, and a line is never wider than the panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.content import Content

from grpo_tui.model.store import Store
from grpo_tui.widgets.list_panel import PAGE, VirtualPanel
from grpo_tui.widgets.panel import from_markup


class LineSource(Protocol):
    """Lines by index. Indexes only grow; old lines may be dropped."""

    follows: bool
    """Whether the view rests at the newest line (a log) or at the first (a document)."""

    @property
    def title(self) -> str:
        """Its name (markup)."""

    @property
    def empty(self) -> str:
        """Message shown without lines."""

    def state(self) -> object:
        """A value that differs whenever a line does."""

    def bounds(self, width: int) -> tuple[int, int]:
        """Index of the first line kept, and one past the last."""

    def line(self, index: int, width: int, palette: Palette) -> Text:
        """One line. The panel truncates it to ``width``."""

    def item(self, index: int) -> object:
        """What a line is made of: the line is painted again if this is another object, or None."""


class Palette(dict[str, str]):
    """Colors of the theme by name, for Rich styles."""

    def __missing__(self, key: str) -> str:
        return "default"


class PageSource:
    """A line source that lays out all its lines at once, anew whenever its state, the width or the colors differ."""

    follows = False

    def __init__(self, store: Store) -> None:
        self.store = store
        self._cache: tuple[tuple[object, int, Palette] | None, list[Text]] = (None, [])

    def state(self) -> object:
        raise NotImplementedError

    def layout(self, width: int, palette: Palette) -> list[Text]:
        """All lines."""
        raise NotImplementedError

    def bounds(self, width: int) -> tuple[int, int]:
        _, palette = self._cache[0][1:] if self._cache[0] else (0, Palette())  # the colors change no line
        return 0, len(self._lines(width, palette))

    def line(self, index: int, width: int, palette: Palette) -> Text:
        lines = self._lines(width, palette)
        return lines[index].copy() if index < len(lines) else Text()

    def item(self, index: int) -> object:
        return None

    def _lines(self, width: int, palette: Palette) -> list[Text]:
        key = (self.state(), width, palette)
        if key != self._cache[0]:
            self._cache = (key, self.layout(width, palette))
        return self._cache[1]


class LinesPanel(VirtualPanel):
    """Shows one of several line sources. The sources are tabs in its title."""

    BINDINGS: ClassVar = [("left", "browse(-1)"), ("right", "browse(1)"), ("h", "vi('h')"), ("l", "vi('l')")]

    def __init__(self, store: Store, sources: list[LineSource], *, id: str) -> None:
        super().__init__(store, id=id)
        self.sources = sources
        self.active = 0
        self.hidden: frozenset[int] = frozenset()
        """Tabs whose content other panels show."""
        self._anchor: int | None = None
        """Index of the top line if the reader has scrolled away; None = the resting position of the source."""
        self._setting = False
        self._end = 0
        self._seen_end = 0

    @property
    def is_seen(self) -> bool:
        """Whether the terminal has room for it."""
        return self.region.height > 2 and self.screen.region.contains_region(self.region)

    @property
    def focusable(self) -> bool:
        """Whether it takes keys."""
        return super().focusable and self.is_seen

    @property
    def source(self) -> LineSource:
        return self.sources[self.active]

    @property
    def text_width(self) -> int:
        return self.scrollable_content_region.width

    def state(self) -> object:
        return (self.active, self.source.state(), self.text_width, self.app.theme)

    def refresh_titles(self) -> None:
        shown = [index for index in range(len(self.sources)) if index not in self.hidden]
        if len(shown) > 1:
            tabs = []
            for index in shown:
                name = self.tab_of(index)
                if index == self.active:
                    tabs.append(f"[bold $primary]{name}[/]")
                else:
                    tabs.append(f"[@click=screen.log_tab({index})]{name}[/]")
            width = sum(len(self.tab_of(index)) for index in shown) + 3 * (len(shown) - 1)
            title = (" [dim]·[/] " if width <= self.outer_size.width - 6 else " ").join(tabs)
        else:
            title = self.source.title
        below = self.age()
        if self._anchor is not None and self.source.follows:
            new = max(0, self._end - self._seen_end)
            paused = f"[$warning]paused{f', {new} new' if new else ''} · end: follow[/]  "
            below = from_markup(paused) + below
        if extra := getattr(self.source, "note", ""):
            below = Content("  ").join([from_markup(extra), *([below] if below else [])])
        self.set_titles(title, below)

    def tab_of(self, index: int) -> str:
        """Name of a source as a tab: its title, unless it has a shorter name."""
        source = self.sources[index]
        return str(getattr(source, "tab", source.title))

    def show_tab(self, index: int) -> None:
        """Show another source."""
        self.active = index % len(self.sources)
        while self.active in self.hidden:
            self.active = (self.active + 1) % len(self.sources)
        self._anchor = None
        self.tick()

    def hide_tabs(self, hidden: frozenset[int]) -> None:
        """Hide the tabs whose content other panels show."""
        self.hidden = hidden
        if self.active in hidden:
            self.show_tab(0)

    def action_browse(self, by: int) -> None:
        """Left and right: show another tab, or browse within the source."""
        browse = getattr(self.source, "browse", None)
        if browse is not None:
            browse(by)
            self._anchor = None
            self.tick()
        else:
            shown = [index for index in range(len(self.sources)) if index not in self.hidden]
            self.show_tab(shown[(shown.index(self.active) + by) % len(shown)])

    # scroll position -----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Lines as of the last tick: one that has arrived since is not shown yet."""
        return self._end - self.first

    @property
    def _bottom(self) -> int:
        """The last scroll position."""
        return max(0, self.count - self.scrollable_content_region.height)

    def content_changed(self) -> None:
        self.first, self._end = self.source.bounds(self.text_width)
        self._setting = True
        try:
            self.set_lines(self.count)
            if self._anchor is not None:
                top = min(self._bottom, max(0, self._anchor - self.first))
            else:
                top = self._bottom if self.source.follows else 0
                self._seen_end = self._end
            self.go_to_top(top)
        finally:
            self._setting = False
        # A scrollbar that appears only now would start at the top.
        self.call_after_refresh(self._move_scrollbar)
        self.repaint()

    def _move_scrollbar(self) -> None:
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_offset.y

    def action_move(self, by: int) -> None:
        """Scroll."""
        lines = by // PAGE * self.scrollable_content_region.height if abs(by) == PAGE else by
        self.go_to_top(min(self._bottom, max(0, round(self.scroll_offset.y) + lines)))

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._setting:
            return
        top = round(new_value)
        at_rest = top >= self._bottom if self.source.follows else top == 0
        if at_rest:
            self._anchor, self._seen_end = None, self._end
        else:
            if self._anchor is None:
                self._seen_end = self._end
            self._anchor = self.first + top

    def on_resize(self, event: events.Resize) -> None:
        self._seen = None
        self.call_after_refresh(self.tick)

    # paint ---------------------------------------------------------------------------------------------

    def made_of(self, index: int) -> object:
        item = self.source.item(index)
        return None if item is None else (self.active, item)

    def line_at(self, y: int, style: Style) -> tuple[Sequence[Segment], Text, Style]:
        width, index = self.text_width, self.entry_at(y)
        if index is not None:
            text = self.source.line(index, width, self.palette)
        elif not self.count:
            height = self.scrollable_content_region.height
            message = self.source.empty if y == max(0, height // 2 - (height % 2 == 0)) else ""
            text = Text(message[:width].center(width), style=self.palette["muted"])
        else:
            text = Text()
        return (), text, style

    @property
    def palette(self) -> Palette:
        colors = self.app.theme_variables
        names = {
            "muted": "grpo-muted",
            "faint": "grpo-faint",
            "good": "success",
            "bad": "error",
            "warn": "warning",
            "key": "primary",
            "reward": "chart-reward",
            "think": "grpo-think",
            "answer": "grpo-answer",
            "code": "secondary",
        }
        return Palette({name: colors[variable] for name, variable in names.items() if variable in colors})


def beside(columns: list[list[Text]], width: int, palette: Palette) -> list[Text]:
    """Columns of lines side by side, each of them ``width`` cells wide."""
    lines = []
    for index in range(max(map(len, columns))):
        line = Text(no_wrap=True)
        for place, column in enumerate(columns):
            part = column[index].copy() if index < len(column) else Text()
            if part.style:  # append_text drops it
                part.stylize_before(part.style)
            part.truncate(width, overflow="ellipsis", pad=True)
            if place:
                line.append(" │ ", style=palette["faint"])
            line.append_text(part)
        lines.append(line)
    return lines
