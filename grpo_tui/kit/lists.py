"""Lists and texts of any length, painted where they are seen: with a cursor, a heading, or at the end of a log.

VirtualPanel is the base of everything that scrolls. ListPanel adds a cursor, TablePanel a heading over columns;
LinesPanel, in its own file, follows the end of a log.

Textual's log widgets scroll to the end on every write, or shift once they are full; here the scroll position is the
index of a line. Only visible lines are formatted, and a line is never wider than the panel.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Protocol, TypeAlias

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.content import Content
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from grpo_tui.box.formatting import Sized, shortened
from grpo_tui.box.store import Store
from grpo_tui.kit.panel import StoreView, from_markup

PAGE = 10
ALL = 10**9
CURSOR, CURSOR_BLURRED = "▌", "▏"
"""Beside the line under the cursor: a color alone is not seen everywhere."""
VI_KEYS = {"j": "down", "k": "up", "g": "home", "G": "end", "h": "left", "l": "right"}


class VirtualPanel(StoreView, ScrollView, can_focus=True):
    """Lines by index. The keys of vi do what the arrow keys do, unless the user gave them to an action."""

    DEFAULT_CLASSES = "panel"
    BINDINGS: ClassVar = [
        *((key, f"vi('{key}')") for key in "jkgG"),
        ("up", "move(-1)"),
        ("down", "move(1)"),
        ("home", f"move({-ALL})"),
        ("end", f"move({ALL})"),
        ("pageup", f"move({-PAGE})"),
        ("pagedown", f"move({PAGE})"),
    ]

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(store, id=id)
        self.first = 0
        """Index of the first line."""
        self._painted: dict[int, object] = {}
        """What each line of the panel showed when it was last painted."""

    # what a panel says ---------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Lines that scroll; 0 in a panel that places its lines itself."""
        return 0

    @property
    def head(self) -> int:
        """Lines above them that do not scroll."""
        return 0

    @property
    def foot(self) -> int:
        """Lines below them that do not scroll."""
        return 0

    def made_of(self, index: int) -> object:
        """What a line is made of, besides width, focus and colors, if that is less work than the line; else None."""
        return None

    def line_at(self, y: int, style: Style) -> tuple[Sequence[Segment], Text, Style]:
        """A line of the panel as it is now: what is before its text, the text, which is cut, and the style of both."""
        raise NotImplementedError

    def action_move(self, by: int) -> None:
        """Move by lines; by PAGE for a page, by ALL to an end."""
        raise NotImplementedError

    # what all panels do --------------------------------------------------------------------------------

    def content_changed(self) -> None:
        self.repaint()

    def set_lines(self, count: int) -> None:
        """Say how many lines there are, once per change.

        Setting ``virtual_size`` lays out the whole screen, on every new line of a log; that is needed only where the
        scrollbar appears or goes. A width of 1 prevents a horizontal one: lines are cut.
        """
        size, height = Size(1, count), self.scrollable_content_region.height
        if height < 1 or (count > height) != self.show_vertical_scrollbar:
            self.virtual_size = size
        elif size != self.virtual_size:
            self.set_reactive(Widget.virtual_size, size)
            if self.show_vertical_scrollbar:
                self.vertical_scrollbar.window_virtual_size = count

    def go_to_top(self, y: int) -> None:
        """Scroll to a line without animation: the next change would undo one in progress."""
        self.scroll_to(y=y, animate=False, force=True, immediate=True)

    def index_at(self, y: int) -> int:
        """Index of what is on a line of the panel."""
        return self.first + y - self.head + round(self.scroll_offset.y)

    def entry_at(self, y: int) -> int | None:
        """As :meth:`index_at`; None for a line that does not scroll or is empty."""
        index = self.index_at(y)
        scrolls = self.head <= y < self.scrollable_content_region.height - self.foot
        return index if scrolls and self.first <= index < self.first + self.count else None

    def repaint(self) -> None:
        """Paint the lines that show something else than before: to paint costs more than to compare."""
        width, height = self.scrollable_content_region.size
        style = self.rich_style
        changed = [
            y for y in range(height)
            if (self._painted_from(y, style) or _composed(*self.line_at(y, style), width)) != self._painted.get(y)
        ]  # fmt: skip
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def render_line(self, y: int) -> Strip:
        width, panel_style = self.scrollable_content_region.width, self.rich_style
        made_of = self._painted_from(y, panel_style)
        before, text, style = self.line_at(y, panel_style)
        self._painted[y] = made_of or _composed(before, text, style, width)
        text.truncate(width - sum(segment.cell_length for segment in before), overflow="ellipsis", pad=True)
        if text.style:  # Text.render ignores it
            text.stylize_before(text.style)
        segments = [*before, *text.render(self.app.console)]
        return Strip(segments).adjust_cell_length(width, style).apply_style(style)

    def _painted_from(self, y: int, style: Style) -> object:
        """All that a line of the panel is painted from, without composing it; None if that is not known."""
        index = self.entry_at(y)
        made_of = self.made_of(index) if index is not None else None
        width = self.scrollable_content_region.width
        return None if made_of is None else (made_of, self.has_focus, width, style, self.app.theme)

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "vi":
            return self.app.is_free(str(parameters[0]))
        return super().check_action(action, parameters)

    async def action_vi(self, key: str) -> None:
        """Do what the arrow key of a vi key does here."""
        bound = self.screen.active_bindings.get(VI_KEYS[key])
        if bound is not None and bound.node is self:
            await self.run_action(bound.binding.action)


def _composed(before: Sequence[Segment], text: Text, style: Style, width: int) -> object:
    """All that a composed line is painted from."""
    return tuple(before), text.plain, tuple(text.spans), text.style, style, width


class ListPanel(VirtualPanel):
    """A line per entry, with a cursor that stays on its entry while the list changes."""

    COMPONENT_CLASSES: ClassVar = {"list--cursor", "list--cursor-blurred", "list--mark", "list--muted"}

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(store, id=id)
        self._cursor = 0
        self._identity: object = None

    # what a list says ----------------------------------------------------------------------------------

    def line(self, index: int, width: int) -> Text:
        """A line of the list, in at most ``width`` cells."""
        raise NotImplementedError

    def identity(self, index: int) -> object:
        """What the cursor stays on: by default the place of a line. None: the line does not take the cursor."""
        return index

    def clicked(self, index: int) -> None:
        """A click on a line."""
        self.move_to(index, 1)

    def head_line(self, y: int, width: int) -> Text:
        """A line above the list, or with a negative ``y`` one below it, the last one -1."""
        raise NotImplementedError

    def head_clicked(self, y: int, x: int) -> None:
        """A click on a line that does not scroll."""

    def empty(self) -> Text:
        """What the first line says if the list has none."""
        return Text("")

    @property
    def cursor(self) -> int:
        """Index of the line under the cursor, or -1."""
        count, wanted = self.count, self._identity
        if wanted is not None and not (self._cursor < count and self.identity(self._cursor) == wanted):
            found = (index for index in range(count) if self.identity(index) == wanted)
            self._cursor = next(found, self._cursor)
        return self._landed(min(self._cursor, count - 1), 1)

    def move_to(self, index: int, by: int) -> None:
        """Put the cursor on a line that exists, or near it in the direction of ``by``."""
        self._cursor = self._landed(index, 1 if by > 0 else -1)
        self._identity = self.identity(self._cursor)

    def keep_cursor(self) -> None:
        """Before the list changes: keep the cursor on its entry, also if the user has not moved it."""
        if (at := self.cursor) >= 0:
            self._cursor, self._identity = at, self.identity(at)

    # what all lists do ---------------------------------------------------------------------------------

    def _landed(self, index: int, direction: int) -> int:
        """The nearest line that takes the cursor, first in a direction; ``index`` if there is none."""
        for way in (direction, -direction):
            at = index
            while 0 <= at < self.count and self.identity(at) is None:
                at += way
            if 0 <= at < self.count:
                return at
        return index

    def tick(self) -> None:
        super().tick()
        if not self.count and self.display and self.is_attached:
            self.repaint()  # why there is nothing may change where the list does not

    def content_changed(self) -> None:
        self.set_lines(self.count + self.head + self.foot)
        self.show_cursor()
        self.repaint()

    def action_move(self, by: int) -> None:
        """Move the cursor at once."""
        if self.count:
            self.move_to(min(self.count - 1, max(0, self.cursor + by)), by)
            self.show_cursor()
            self.repaint()

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset_capture(self)
        height = self.scrollable_content_region.height
        if not self.head <= at.y < height - self.foot:
            self.head_clicked(at.y if at.y < self.head else at.y - height, at.x - 1)
        elif (index := self.entry_at(at.y)) is not None:
            self.clicked(index)
            self.repaint()

    def on_resize(self) -> None:
        self.show_cursor()

    def show_cursor(self) -> None:
        """Scroll until the cursor is seen."""
        height = self.scrollable_content_region.height - self.head - self.foot
        top, cursor = round(self.scroll_offset.y), self.cursor
        if height >= 1 and cursor >= 0 and not top <= cursor < top + height:
            self.go_to_top(max(0, cursor - height // 2))

    def _painted_from(self, y: int, style: Style) -> object:
        made_of = super()._painted_from(y, style)
        return None if made_of is None else (made_of, self.index_at(y) == self.cursor)

    def line_at(self, y: int, style: Style) -> tuple[Sequence[Segment], Text, Style]:
        width, height = self.scrollable_content_region.size
        width -= 1  # the first cell is the cursor's
        index, mark = self.entry_at(y), Segment(" ")
        if y < self.head or y >= height - self.foot:
            text = self.head_line(y if y < self.head else y - height, width)
        elif index is None:
            text = self.empty() if y == self.head and not self.count else Text("")
            text.stylize_before(self.muted)
        else:
            if index == self.cursor:
                style += self.get_component_rich_style("list--cursor" if self.has_focus else "list--cursor-blurred")
                tone = self.get_component_rich_style("list--mark", partial=True)
                mark = Segment(CURSOR if self.has_focus else CURSOR_BLURRED, tone)
            text = self.line(index, width)
        return (mark,), text, style

    @property
    def muted(self) -> Style:
        """Of what is said beside the list."""
        return self.get_component_rich_style("list--muted", partial=True)


Cell: TypeAlias = "Text | tuple[str, str | Style]"
"""A text with its style, which is also that of its padding; or a Text, to the left, whose padding has none."""


def headings(
    columns: Iterable[Sized], margin: int = 0, sorted_by: str = "", arrow: str = ""
) -> tuple[Text, list[tuple[int, int, str]]]:
    """The titles of columns after ``margin`` cells; where each begins and ends, and its column."""
    text, spans = Text(" " * margin, no_wrap=True), []
    for place, column in enumerate(columns):
        text.append(" " * column.gap if place else "")
        start = text.cell_len
        title, is_sorted = column.title, bool(arrow) and column.id == sorted_by
        if is_sorted:  # the arrow is not cut off
            title = f"{title}{arrow}"
            text.append(title if cell_len(title) > column.width else column.fitted(title), style="bold")
        else:
            text.append(column.fitted(title))
        spans.append((start, text.cell_len, column.id))
    return text, spans


def row_text(columns: Sequence[Sized], cells: Iterable[Cell]) -> Text:
    """A line of a table."""
    text, pad = Text(no_wrap=True), 0
    for place, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        text.append(" " * (pad + column.gap if place else 0))
        if isinstance(cell, tuple):
            cell = Text(column.fitted(cell[0]), cell[1])
        elif column.width and cell.cell_len > column.width:
            cell = Text(shortened(cell.plain, column.width), style=cell.style)
        text.append_text(cell)
        pad = max(0, column.width - cell.cell_len)
    return text


class TablePanel(ListPanel):
    """A list of rows under the headings of the columns that fit, which do not scroll."""

    class Sorted(Message):
        """The heading of a column was clicked."""

        def __init__(self, column: str) -> None:
            super().__init__()
            self.column = column

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(store, id=id)
        self._spans: list[tuple[int, int, str]] = []
        """Where each heading is, and its column."""

    def columns(self, width: int) -> Sequence[Sized]:
        """The columns that fit, in their order."""
        raise NotImplementedError

    def cells(self, index: int, columns: Sequence[Sized]) -> Iterable[Cell]:
        """The cells of a row in these columns."""
        raise NotImplementedError

    def before(self, index: int) -> Text:
        """Marks before the first column, in :attr:`margin` cells."""
        return Text()

    @property
    def margin(self) -> int:
        """Cells before the first column."""
        return 0

    @property
    def sorted_by(self) -> tuple[str, str]:
        """The column that the rows are sorted by, and its arrow."""
        return "", ""

    def line(self, index: int, width: int) -> Text:
        columns = self.columns(width - self.margin)
        return self.before(index).append_text(row_text(columns, self.cells(index, columns)))

    def heading(self, width: int) -> Text:
        """The headings."""
        text, self._spans = headings(self.columns(width - self.margin), self.margin, *self.sorted_by)
        return text

    @property
    def head(self) -> int:
        return 1

    def head_line(self, y: int, width: int) -> Text:
        text = self.heading(width) if self.count else Text("")
        text.stylize_before(self.muted)
        return text

    def head_clicked(self, y: int, x: int) -> None:
        for start, end, column in self._spans:
            if y == 0 and start <= x < end:
                self.post_message(self.Sorted(column))


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
                    tabs.append(f"[@click=show_tab({index})]{name}[/]")
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

    def action_show_tab(self, index: int) -> None:
        """Show a tab (a click on its title)."""
        self.show_tab(int(index))

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
        return max(0, self.count + self.foot - self.scrollable_content_region.height)

    def content_changed(self) -> None:
        self.first, self._end = self.source.bounds(self.text_width)
        self._setting = True
        try:
            self.set_lines(self.count + self.foot)
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
        elif y >= self.scrollable_content_region.height - self.foot:
            text = self.foot_line(y - self.scrollable_content_region.height, width)
        elif not self.count:
            height = self.scrollable_content_region.height
            message = self.source.empty if y == max(0, height // 2 - (height % 2 == 0)) else ""
            text = Text(message[:width].center(width), style=self.palette["muted"])
        else:
            text = Text()
        return (), text, style

    def foot_line(self, y: int, width: int) -> Text:
        """A line below the source that does not scroll, the last one -1."""
        raise NotImplementedError

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
            "background": "background",
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
