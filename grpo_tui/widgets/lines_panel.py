"""A view of numbered lines that follows their end, and does not move under a reader who has scrolled up.

Textual's own logs scroll to the end on every write, or slide once they are full; here the reader's place is the
number of a line. Only what is on the screen is formatted, and a line is never wider than the panel.
"""

from __future__ import annotations

from typing import ClassVar, Protocol

from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import ScrollPanel


class LineSource(Protocol):
    """Lines by number. Numbers only grow; old lines may go."""

    title: str
    follows: bool
    """Whether the newest line is the interesting one (a log), or the first (a document)."""
    empty: str
    """What to say where there is no line."""

    def state(self) -> object:
        """Differs when a line does."""

    def bounds(self, width: int) -> tuple[int, int]:
        """Number of the first line kept, and one past the last."""

    def line(self, number: int, width: int, palette: Palette) -> Text:
        """One line, to be cut to ``width``."""


class Palette(dict[str, str]):
    """Colours of the theme by name, for Rich styles."""

    def __missing__(self, key: str) -> str:
        return "default"


class LinesPanel(ScrollPanel):
    """Shows one of several line sources; the others are tabs in its title."""

    BINDINGS: ClassVar = [("left", "browse(-1)"), ("right", "browse(1)")]

    class TabChosen(Message):
        """A tab was turned to."""

    def __init__(self, store: Store, sources: list[LineSource], *, id: str, classes: str | None = None) -> None:
        super().__init__(store, id=id, classes=classes)
        self.sources = sources
        self.active = 0
        self.hidden: frozenset[int] = frozenset()
        """Tabs that other panels show already."""
        self._first = 0
        self._anchor: int | None = None
        """Number of the line at the top, for a reader who has scrolled away; None = where the source wants."""
        self._setting = False
        self._cache: dict[int, Strip] = {}
        self._seen_end = 0

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
            words = []
            for index in shown:
                name = self.sources[index].title
                if index == self.active:
                    words.append(f"[bold $primary]{name}[/]")
                else:
                    words.append(f"[@click=screen.log_tab({index})]{name}[/]")
            width = sum(len(self.sources[index].title) for index in shown) + 3 * (len(shown) - 1)
            title = (" [dim]·[/] " if width <= self.outer_size.width - 6 else " ").join(words)
        else:
            title = self.source.title
        below = self.age_markup()
        if self._anchor is not None and self.source.follows:
            fresh = max(0, self._end - self._seen_end)
            below = f"[$warning]paused{f', {fresh} new' if fresh else ''} · end follows again[/]  " + below
        extra = getattr(self.source, "note", "")
        self.set_titles(title, f"{extra}  {below}" if extra else below)

    def show_tab(self, index: int) -> None:
        """Turn to another source."""
        self.active = index % len(self.sources)
        while self.active in self.hidden:
            self.active = (self.active + 1) % len(self.sources)
        self._anchor = None
        self.tick()
        self.post_message(self.TabChosen())

    def hide_tabs(self, hidden: frozenset[int]) -> None:
        """Say which tabs other panels show."""
        self.hidden = hidden
        if self.active in hidden:
            self.show_tab(0)

    def action_browse(self, by: int) -> None:
        """Left and right: another tab, or the source's own browsing."""
        browse = getattr(self.source, "browse", None)
        if browse is not None:
            browse(by)
            self._anchor = None
            self.tick()
        else:
            shown = [index for index in range(len(self.sources)) if index not in self.hidden]
            self.show_tab(shown[(shown.index(self.active) + by) % len(shown)])

    # place ---------------------------------------------------------------------------------------------

    def content_changed(self) -> None:
        self._cache.clear()
        first, end = self.source.bounds(self.text_width)
        self._first, self._end = first, end
        self._setting = True
        try:
            # A width of 1 keeps the horizontal scrollbar away: lines are cut, never scrolled sideways.
            self.virtual_size = Size(1, end - first)
            height = self.scrollable_content_region.height
            bottom = max(0, end - first - height)
            if self._anchor is not None:
                place = min(bottom, max(0, self._anchor - first))
            else:
                place = bottom if self.source.follows else 0
                self._seen_end = end
            self.scroll_to(y=place, animate=False, force=True, immediate=True)
        finally:
            self._setting = False
        # The scrollbar may only now come to be, and would stand at the top.
        self.call_after_refresh(self._place_scrollbar)
        self.refresh()

    def _place_scrollbar(self) -> None:
        if self.show_vertical_scrollbar:
            self.vertical_scrollbar.position = self.scroll_offset.y

    _end = 0

    # Keys move at once: an animation that has only begun would be undone by the next line that arrives.

    def action_scroll_up(self) -> None:
        self._go_to(self.scroll_offset.y - 1)

    def action_scroll_down(self) -> None:
        self._go_to(self.scroll_offset.y + 1)

    def action_page_up(self) -> None:
        self._go_to(self.scroll_offset.y - self.scrollable_content_region.height)

    def action_page_down(self) -> None:
        self._go_to(self.scroll_offset.y + self.scrollable_content_region.height)

    def action_scroll_home(self) -> None:
        self._go_to(0)

    def action_scroll_end(self) -> None:
        self._go_to(self._end - self._first)

    def _go_to(self, place: float) -> None:
        bottom = max(0, self._end - self._first - self.scrollable_content_region.height)
        self.scroll_to(y=min(bottom, max(0, place)), animate=False, force=True, immediate=True)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if self._setting:
            return
        height = self.scrollable_content_region.height
        place = round(new_value)
        at_rest = place >= self._end - self._first - height if self.source.follows else place == 0
        if at_rest:
            self._anchor, self._seen_end = None, self._end
        else:
            if self._anchor is None:
                self._seen_end = self._end
            self._anchor = self._first + place

    def on_resize(self, event: events.Resize) -> None:
        self._seen = None
        self.call_after_refresh(self.tick)

    # paint ---------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.text_width
        number = self._first + round(self.scroll_offset.y) + y
        strip = self._cache.get(number)
        if strip is None:
            strip = self._cache[number] = self._paint(number, y, width)
        return strip

    def _paint(self, number: int, y: int, width: int) -> Strip:
        style = self.rich_style
        if self._end == self._first:
            height = self.scrollable_content_region.height
            words = self.source.empty if y == max(0, height // 2 - (height % 2 == 0)) else ""
            text = Text(words[:width].center(width), style=self.palette["faint"])
        elif self._first <= number < self._end:
            text = self.source.line(number, width, self.palette)
            text.truncate(width, overflow="ellipsis", pad=True)
        else:
            return Strip.blank(width, style)
        if text.style:  # a text's own style is not rendered, its spans are
            text.stylize_before(text.style)
            text.style = ""
        segments = list(text.render(self.app.console))
        return Strip(segments).adjust_cell_length(width, style).apply_style(style)

    @property
    def palette(self) -> Palette:
        colours = self.app.theme_variables
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
        }
        return Palette({name: colours[variable] for name, variable in names.items() if variable in colours})
