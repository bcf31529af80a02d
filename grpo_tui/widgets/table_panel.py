"""Base of the lists with a heading over their columns."""

from __future__ import annotations

from rich.text import Text

from grpo_tui.widgets.list_panel import ListPanel


class TablePanel(ListPanel):
    """A list under a heading, which does not scroll."""

    def heading(self, width: int) -> Text:
        """The first line."""
        raise NotImplementedError

    @property
    def head(self) -> int:
        return 1

    def head_line(self, y: int, width: int) -> Text:
        text = self.heading(width) if self.count else Text("")
        text.stylize_before(self.get_component_rich_style("list--muted", partial=True))
        return text
