"""The list of a run's metrics: those in the charts, the others by family, what is unusual lately."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual import events
from textual.content import Content
from textual.geometry import Size
from textual.message import Message
from textual.strip import Strip

from grpo_train.run_dir.files import to_float
from grpo_tui.model.charts_view import ChartsView, MetricLine, metric_lines
from grpo_tui.model.formatting import compact_number, metric_value, shortened
from grpo_tui.model.store import Store
from grpo_tui.widgets.panel import ScrollPanel

EMPTY = "no metrics logged yet"


class MetricsPanel(ScrollPanel):
    """One line per metric; the cursor stays on its metric when the list changes."""

    COMPONENT_CLASSES: ClassVar = {
        "metrics--cursor", "metrics--cursor-blurred", "metrics--muted", "metrics--shown", "metrics--unusual",
    }  # fmt: skip
    BINDINGS: ClassVar = [
        ("up", "move(-1)"),
        ("down", "move(1)"),
        ("home", "move(-100000)"),
        ("end", "move(100000)"),
        ("pageup", "move(-10)"),
        ("pagedown", "move(10)"),
    ]

    class Toggled(Message):
        """A click on a metric: show or hide it."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(
        self, store: Store, view: ChartsView, rows: Callable[[], Sequence[Mapping[str, Any]]], *, id: str
    ) -> None:
        super().__init__(store, id=id)
        self.view = view
        self._rows = rows
        self._lines: list[MetricLine] = []
        self._made_of: object = None
        self._cursor = 0

    @property
    def current(self) -> str:
        """The metric under the cursor, or ""."""
        return self._lines[self._cursor].name if self._cursor < len(self._lines) else ""

    def state(self) -> object:
        return (self._lines, self.store.log_version("train_log"), self.size, self.app.theme, self.has_focus)

    def tick(self) -> None:
        rows, view = self._rows(), self.view
        made_of = (id(rows), len(rows), view.filter, tuple(view.shown))
        if made_of != self._made_of:
            self._made_of = made_of
            lines = metric_lines(rows, view)
            name = self.current
            self._lines = lines
            found = [index for index, line in enumerate(lines) if line.name == name and name]
            self._cursor = found[0] if found else min(self._cursor, max(0, len(lines) - 1))
            self._land(1)
        super().tick()

    def content_changed(self) -> None:
        self.virtual_size = Size(1, len(self._lines))
        self._show_cursor()
        self.refresh()

    def refresh_titles(self) -> None:
        if self.view.filter:
            title = Content.from_markup("metrics [$warning]/$filter[/]", filter=self.view.filter)
        else:
            title = Content("metrics")
        self.set_titles(title, Content.from_markup("[$text-muted]space shows[/]") if self.has_focus else "")

    def action_move(self, by: int) -> None:
        if not self._lines:
            return
        self._cursor = min(len(self._lines) - 1, max(0, self._cursor + by))
        self._land(1 if by > 0 else -1)
        self._show_cursor()
        self.refresh()

    def _land(self, direction: int) -> None:
        """Move the cursor off a heading."""
        for way in (direction, -direction):
            index = self._cursor
            while 0 <= index < len(self._lines) and not self._lines[index].name:
                index += way
            if 0 <= index < len(self._lines):
                self._cursor = index
                return

    def on_click(self, event: events.Click) -> None:
        index = event.get_content_offset_capture(self).y + round(self.scroll_offset.y)
        if 0 <= index < len(self._lines) and (name := self._lines[index].name):
            self._cursor = index
            self.post_message(self.Toggled(name))

    def on_resize(self) -> None:
        self._show_cursor()

    def _show_cursor(self) -> None:
        height, top = self.scrollable_content_region.height, round(self.scroll_offset.y)
        if height >= 1 and not top <= self._cursor < top + height:
            self.scroll_to(y=max(0, self._cursor - height // 2), animate=False, force=True, immediate=True)

    # paint ---------------------------------------------------------------------------------------------

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        index = y + round(self.scroll_offset.y)
        style = self.rich_style
        if index >= len(self._lines):
            text = Text(EMPTY if y == 0 and not self._lines and not self.view.filter else "")
            text.stylize(self.get_component_rich_style("metrics--muted", partial=True))
        else:
            if index == self._cursor:
                style += self.get_component_rich_style(
                    "metrics--cursor" if self.has_focus else "metrics--cursor-blurred"
                )
            text = self._line(self._lines[index], width)
        text.truncate(width, overflow="ellipsis", pad=True)
        return Strip(list(text.render(self.app.console))).adjust_cell_length(width, style).apply_style(style)

    def _line(self, line: MetricLine, width: int) -> Text:
        muted = self.get_component_rich_style("metrics--muted", partial=True)
        if not line.name:
            tone = "metrics--unusual" if line.text.startswith("▲") else "metrics--muted"
            return Text(line.text, style=self.get_component_rich_style(tone, partial=True), no_wrap=True)
        value = self._value(line.name)
        mark = "★ " if line.is_shown else "  " if line.indent else ""
        unusual = " ▲" if line.unusual is not None else ""
        room = width - len(mark) - len(value) - len(unusual) - 1
        text = Text(no_wrap=True)
        text.append(mark, style=self.get_component_rich_style("metrics--shown", partial=True))
        text.append(f"{shortened(line.text, max(1, room)):<{max(1, room)}} ")
        text.append(value, style="" if line.is_shown else muted)
        text.append(unusual, style=self.get_component_rich_style("metrics--unusual", partial=True))
        return text

    def _value(self, name: str) -> str:
        """The newest value: from the end of the log, which is newer than the box's table."""
        row = self.store.logs.rows.last if self.store.logs else None
        value = to_float(row.fields.get(name)) if row else None
        if value is None:
            value = to_float(next((each.get("last") for each in self._rows() if each["name"] == name), None))
        text = metric_value(value)
        return text if len(text) <= 7 else compact_number(value, 7)
