"""A list with a cursor and a line of headings that does not scroll."""

from __future__ import annotations

from rich.text import Text
from textual.geometry import Size
from textual.strip import Strip

from grpo_tui.widgets.list_panel import ListPanel


class TablePanel(ListPanel):
    """A :class:`ListPanel` whose first line names the columns."""

    def heading(self, width: int) -> Text:
        """The names of the columns."""
        raise NotImplementedError

    def content_changed(self) -> None:
        self.virtual_size = Size(1, self.count + 1)
        self.show_cursor()
        self.refresh()

    def index_at(self, y: int) -> int:
        return super().index_at(y - 1) if y else -1

    def show_cursor(self) -> None:
        height, top, cursor = self.scrollable_content_region.height - 1, round(self.scroll_offset.y), self.cursor
        if height >= 1 and cursor >= 0 and not top <= cursor < top + height:
            self.scroll_to(y=max(0, cursor - height // 2), animate=False, force=True, immediate=True)

    def render_line(self, y: int) -> Strip:
        if y:
            return super().render_line(y - 1)
        width, style = self.scrollable_content_region.width, self.rich_style
        text = self.heading(width) if self.count else Text("")
        text.stylize_before(self.get_component_rich_style("list--muted", partial=True))
        text.truncate(width, overflow="ellipsis", pad=True)
        return Strip(list(text.render(self.app.console))).adjust_cell_length(width, style).apply_style(style)
