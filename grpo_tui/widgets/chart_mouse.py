"""What the mouse does on a chart: a click points, the wheel zooms, a drag selects a range."""

from __future__ import annotations

from collections.abc import Sequence

from textual import events
from textual.message import Message

from grpo_tui.model.run_events import RunEvent
from grpo_tui.widgets.panel import Panel

LEAST_DRAG = 2
"""Columns; a shorter drag is a click with an unsteady hand."""


class ChartMouse(Panel):
    """Messages of a chart. ``x_at`` and ``events_at`` say what is under the pointer."""

    dragged: tuple[int, int] | None = None
    """First and last column of the range under a drag, in cells of the widget."""
    _was_drag = False

    class Pointed(Message):
        """The user pointed at an x, or at the sign of events there."""

        def __init__(self, x: float, events: Sequence[RunEvent] = ()) -> None:
            super().__init__()
            self.x, self.events = x, events

    class Scrolled(Message):
        """The user turned the wheel over an x: +1 zooms in, -1 out."""

        def __init__(self, x: float, by: int) -> None:
            super().__init__()
            self.x, self.by = x, by

    class Dragged(Message):
        """The user dragged the pointer from one x to another."""

        def __init__(self, low: float, high: float) -> None:
            super().__init__()
            self.low, self.high = low, high

    def x_at(self, column: int) -> float | None:
        """The x of a column; None beside the plot."""
        raise NotImplementedError

    def events_at(self, column: int, row: int) -> Sequence[RunEvent]:
        """The events whose sign is in a cell."""
        return ()

    def on_mouse_down(self, event: events.MouseDown) -> None:
        column = event.get_content_offset_capture(self).x
        if event.button == 1 and self.x_at(column) is not None:
            self.dragged, self._was_drag = (column, column), False
            self.capture_mouse()

    def on_mouse_move(self, event: events.MouseMove) -> None:
        column = event.get_content_offset_capture(self).x
        if self.dragged is not None and self.x_at(column) is not None:
            self.dragged = (self.dragged[0], column)
            self.refresh()

    def on_mouse_up(self, event: events.MouseUp) -> None:
        dragged, self.dragged = self.dragged, None
        self.release_mouse()
        if dragged is None:
            return
        low, high = (self.x_at(column) for column in sorted(dragged))
        self._was_drag = abs(dragged[1] - dragged[0]) >= LEAST_DRAG
        if self._was_drag and low is not None and high is not None:
            self.post_message(self.Dragged(low, high))
        self.refresh()

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset_capture(self)
        if not self._was_drag and (x := self.x_at(offset.x)) is not None:
            self.post_message(self.Pointed(x, self.events_at(offset.x, offset.y)))

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        self._scroll(event, 1)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        self._scroll(event, -1)

    def _scroll(self, event: events.MouseEvent, by: int) -> None:
        if (x := self.x_at(event.get_content_offset_capture(self).x)) is not None:
            event.stop()
            self.post_message(self.Scrolled(x, by))
