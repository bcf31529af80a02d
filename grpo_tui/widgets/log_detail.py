"""The whole line under the cursor: a row of JSON as indented fields, anything else wrapped."""

from __future__ import annotations

from collections.abc import Callable

from rich.text import Text
from textual.content import Content

from grpo_tui.model.formatting import byte_size
from grpo_tui.model.json_lines import fields
from grpo_tui.model.logs_view import LogsView
from grpo_tui.model.store import Store
from grpo_tui.widgets.lines_panel import LinesPanel, PageSource, Palette
from grpo_tui.widgets.sources import wrapped


class WholeLinePanel(LinesPanel):
    """The page in a frame without an age."""

    def age(self) -> Content:
        return Content()


class WholeLineSource(PageSource):
    """The line as a page."""

    title, empty = "this line", "no line"

    def __init__(self, store: Store, view: Callable[[], LogsView | None], key: Callable[[], str]) -> None:
        super().__init__(store)
        self._view, self._key = view, key

    @property
    def note(self) -> str:
        return f"[$text-muted]{self._key()} copies[/]"

    def state(self) -> object:
        whole = view.whole if (view := self._view()) else None
        return (whole.path, whole.line, len(whole.text), whole.is_asked, whole.problem) if whole else None

    def layout(self, width: int, palette: Palette) -> list[Text]:
        whole = view.whole if (view := self._view()) else None
        if whole is None or width < 4:
            return []
        rows = fields(whole.text)
        lines = [part for row in rows or [whole.text] for part in wrapped(self._field(row, bool(rows), palette), width)]
        if notice := self._notice(whole.is_cut, len(whole.text), whole.line.length, whole.problem):
            lines = [*wrapped(Text(notice, style=palette["warn"]), width), *lines]
        if whole.line.is_open:
            lines.append(Text("(its end is not written yet)", style=palette["muted"]))
        return lines

    @staticmethod
    def _field(row: str, is_field: bool, palette: Palette) -> Text:
        text = Text(row)
        if is_field and (end := row.find(":")) > 0:
            text.stylize(palette["muted"], 0, end + 1)
        return text

    @staticmethod
    def _notice(is_cut: bool, shown: int, length: int, problem: str) -> str:
        if problem:
            return f"only its beginning: {problem}"
        return f"the first {byte_size(shown)} of {byte_size(length)}" if is_cut else ""
