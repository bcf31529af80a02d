"""Base of all lists with a cursor: keys, mouse and scrolling. A list says how many lines it has and what is on each."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Region
from textual.strip import Strip

from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import ScrollPanel

PAGE = 10
ALL = 10**9
CURSOR, CURSOR_BLURRED = "▌", "▏"
"""Beside the line under the cursor: a color alone is not seen everywhere."""


class ListPanel(ScrollPanel):
    """One line per entry, painted only where it is seen: any number of entries costs the same."""

    COMPONENT_CLASSES: ClassVar = {"list--cursor", "list--cursor-blurred", "list--mark", "list--muted"}
    BINDINGS: ClassVar = [
        ("up", "move(-1)"),
        ("down", "move(1)"),
        ("home", f"move({-ALL})"),
        ("end", f"move({ALL})"),
        ("pageup", f"move({-PAGE})"),
        ("pagedown", f"move({PAGE})"),
    ]

    def __init__(self, store: Store, *, id: str) -> None:
        super().__init__(store, id=id)
        self._painted: dict[int, object] = {}
        """What each line of the panel shows since it was painted last."""
        self._compared: dict[int, object] = {}
        """What each line of the panel was made of when it was compared last."""

    # what a list says ----------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """Lines of the list."""
        raise NotImplementedError

    @property
    def cursor(self) -> int:
        """Index of the line under the cursor, or -1."""
        raise NotImplementedError

    def line(self, index: int, width: int) -> Text:
        """A line of the list, in at most ``width`` cells."""
        raise NotImplementedError

    def made_of(self, index: int) -> object:
        """What a line of the list is made of, where that is less work than the line; else None."""
        return None

    def move_to(self, index: int, by: int) -> None:
        """Put the cursor on a line that exists, or near it in the direction of ``by``."""
        raise NotImplementedError

    def clicked(self, index: int) -> None:
        """A click on a line."""
        self.move_to(index, 1)

    @property
    def head(self) -> int:
        """Lines above the list that do not scroll."""
        return 0

    @property
    def foot(self) -> int:
        """Lines below the list that do not scroll."""
        return 0

    def head_line(self, y: int, width: int) -> Text:
        """A line above the list, or with a negative ``y`` one below it, the last one -1."""
        raise NotImplementedError

    def head_clicked(self, y: int, x: int) -> None:
        """A click on a line that does not scroll."""

    def empty(self) -> Text:
        """What the first line says if the list has none."""
        return Text("")

    # what all lists do ---------------------------------------------------------------------------------

    def tick(self) -> None:
        super().tick()
        if not self.count and self.display and self.is_attached:
            self.repaint()  # why there is nothing may change where the list does not

    def content_changed(self) -> None:
        self.set_lines(self.count + self.head + self.foot)
        self.show_cursor()
        self.repaint()

    def repaint(self) -> None:
        """Paint the lines that show something else than before: to paint costs more than to compare."""
        width, height = self.scrollable_content_region.size
        style, changed = self.rich_style, []
        for y in range(height):
            index = self.index_at(y)
            is_entry = self.head <= y < height - self.foot and index < self.count
            if is_entry and (made_of := self.made_of(index)) is not None:
                made_of = (made_of, index == self.cursor, self.has_focus, style, width)
                if made_of == self._compared.get(y):
                    continue
                self._compared[y] = made_of
            else:
                self._compared.pop(y, None)
            if _shown(*self._line_at(y, style)) != self._painted.get(y):
                changed.append(y)
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

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
            return
        index = self.index_at(at.y)
        if 0 <= index < self.count:
            self.clicked(index)
            self.repaint()

    def index_at(self, y: int) -> int:
        """Index of the entry on a line of the panel."""
        return y - self.head + round(self.scroll_offset.y)

    def on_resize(self) -> None:
        self.show_cursor()

    def show_cursor(self) -> None:
        """Scroll until the cursor is seen."""
        height = self.scrollable_content_region.height - self.head - self.foot
        top, cursor = round(self.scroll_offset.y), self.cursor
        if height >= 1 and cursor >= 0 and not top <= cursor < top + height:
            self.scroll_to(y=max(0, cursor - height // 2), animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        mark, text, style = self._line_at(y, self.rich_style)
        self._painted[y] = _shown(mark, text, style)
        self._compared.pop(y, None)  # it may have been painted as something else in between
        text.truncate(width - 1, overflow="ellipsis", pad=True)
        segments = [mark, *text.render(self.app.console)]
        return Strip(segments).adjust_cell_length(width, style).apply_style(style)

    def _line_at(self, y: int, style: Style) -> tuple[Segment, Text, Style]:
        """A line of the panel as it is now: the mark of the cursor, what the list shows, and the style of both."""
        width, height = self.scrollable_content_region.size
        width -= 1  # the first cell is the cursor's
        index, mark = self.index_at(y), Segment(" ")
        if y < self.head or y >= height - self.foot:
            text = self.head_line(y if y < self.head else y - height, width)
        elif index >= self.count:
            text = self.empty() if y == self.head and not self.count else Text("")
            text.stylize_before(self.get_component_rich_style("list--muted", partial=True))
        else:
            if index == self.cursor:
                style += self.get_component_rich_style("list--cursor" if self.has_focus else "list--cursor-blurred")
                tone = self.get_component_rich_style("list--mark", partial=True)
                mark = Segment(CURSOR if self.has_focus else CURSOR_BLURRED, tone)
            text = self.line(index, width)
        return mark, text, style


def _shown(mark: Segment, text: Text, style: Style) -> object:
    """All that a line is painted from, besides its width."""
    return mark, text.plain, tuple(text.spans), text.style, style
