"""Base of all lists with a cursor: keys, mouse and scrolling. A list says how many lines it has and what is on each."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual import events
from textual.geometry import Size
from textual.strip import Strip

from grpo_tui.widgets.panel import ScrollPanel

PAGE = 10
ALL = 10**9


class ListPanel(ScrollPanel):
    """One line per entry, painted only where it is seen: any number of entries costs the same."""

    COMPONENT_CLASSES: ClassVar = {"list--cursor", "list--cursor-blurred", "list--muted"}
    BINDINGS: ClassVar = [
        ("up", "move(-1)"),
        ("down", "move(1)"),
        ("home", f"move({-ALL})"),
        ("end", f"move({ALL})"),
        ("pageup", f"move({-PAGE})"),
        ("pagedown", f"move({PAGE})"),
    ]

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

    def move_to(self, index: int, by: int) -> None:
        """Put the cursor on a line that exists, or near it in the direction of ``by``."""
        raise NotImplementedError

    def clicked(self, index: int) -> None:
        """A click on a line."""
        self.move_to(index, 1)

    def empty(self) -> Text:
        """What the first line says if the list has none."""
        return Text("")

    # what all lists do ---------------------------------------------------------------------------------

    def content_changed(self) -> None:
        self.virtual_size = Size(1, self.count)
        self.show_cursor()
        self.refresh()

    def action_move(self, by: int) -> None:
        """Move the cursor at once."""
        if self.count:
            self.move_to(min(self.count - 1, max(0, self.cursor + by)), by)
            self.show_cursor()
            self.refresh()

    def on_click(self, event: events.Click) -> None:
        index = self.index_at(event.get_content_offset_capture(self).y)
        if 0 <= index < self.count:
            self.clicked(index)
            self.refresh()

    def index_at(self, y: int) -> int:
        """Index of the entry on a line of the panel."""
        return y + round(self.scroll_offset.y)

    def on_resize(self) -> None:
        self.show_cursor()

    def show_cursor(self) -> None:
        """Scroll until the cursor is seen."""
        height, top, cursor = self.scrollable_content_region.height, round(self.scroll_offset.y), self.cursor
        if height >= 1 and cursor >= 0 and not top <= cursor < top + height:
            self.scroll_to(y=max(0, cursor - height // 2), animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_offset.y)
        style = self.rich_style
        if index >= self.count:
            text = self.empty() if y == 0 and not self.count else Text("")
            text.stylize_before(self.get_component_rich_style("list--muted", partial=True))
        else:
            if index == self.cursor:
                style += self.get_component_rich_style("list--cursor" if self.has_focus else "list--cursor-blurred")
            text = self.line(index, width)
        text.truncate(width, overflow="ellipsis", pad=True)
        return Strip(list(text.render(self.app.console))).adjust_cell_length(width, style).apply_style(style)
