"""Text of any length in a limited height: what does not fit ends in an ellipsis."""

from __future__ import annotations

from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.widgets import Static


class Excerpt(Static):
    """Grows with its text up to ``max-height``."""

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return self.visual.get_height({}, max(width, 1))  # less than nothing is left in a tiny terminal

    def render(self) -> Content:
        text, (width, height) = self.visual, self.size
        assert isinstance(text, Content)
        if width < 1 or height < 1:
            return text
        lines = text.wrap(width)
        if len(lines) <= height:
            return text
        last = lines[height - 1].rstrip()
        last = last.truncate(width - 1) if last.cell_length >= width else last
        return Content("\n").join([*lines[: height - 1], last + "…"])

    def on_resize(self, event: events.Resize) -> None:
        self.refresh()
