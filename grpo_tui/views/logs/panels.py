"""The files of a run, which lines of the open one are shown, and the line under the cursor."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.cells import cell_len
from rich.text import Text
from textual.content import Content
from textual.message import Message

from grpo_tui.box.formatting import byte_size, shortened
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import LinesPanel, ListPanel, PageSource, Palette
from grpo_tui.kit.sources import wrapped
from grpo_tui.views.logs.model.logs import FileRow, LogsView, fields


class LogFilesPanel(ListPanel):
    """One line per file and level; the cursor stays on its line when the list changes."""

    COMPONENT_CLASSES: ClassVar = {"files--open"}
    BINDINGS: ClassVar = [("right", "lines"), ("l", "vi('l')")]

    class Opened(Message):
        """Enter or a click on a line."""

        def __init__(self, row: FileRow) -> None:
            super().__init__()
            self.row = row

    class Left(Message):
        """The keys go to the lines."""

    def __init__(self, store: Store, view: Callable[[], LogsView | None], *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view
        self._rows: list[FileRow] = []

    @property
    def count(self) -> int:
        return len(self._rows)

    def identity(self, index: int) -> object:
        row = self._rows[index]
        return (row.kind, row.path, row.level) if row.kind in ("file", "level") else None

    @property
    def current(self) -> FileRow | None:
        """The line under the cursor."""
        return self._rows[at] if (at := self.cursor) >= 0 else None

    def state(self) -> object:
        view = self._view()
        window = view.window if view else None
        opened = (window.path, window.level, window.leveled >= 1) if window else None
        return (self._rows, opened, self.cursor, self.size, self.app.theme, self.has_focus)

    def tick(self) -> None:
        view = self._view()
        rows = view.rows() if view else []
        if rows != self._rows:
            self.keep_cursor()
            self._rows = rows
        super().tick()

    def refresh_titles(self) -> None:
        hint = Content.from_markup("[$text-muted]$key opens[/]", key=self.key("log_open")) if self.has_focus else ""
        self.set_titles("files", hint)

    def clicked(self, index: int) -> None:
        if self.identity(index) is not None:
            self.move_to(index, 1)
            self.post_message(self.Opened(self._rows[index]))

    def action_lines(self) -> None:
        self.post_message(self.Left())

    def empty(self) -> Text:
        view = self._view()
        if view is None:
            return Text("no run selected")
        return Text(view.listing.instead("no files yet") if self.store.connected else "not connected")

    def line(self, index: int, width: int) -> Text:
        row, view = self._rows[index], self._view()
        muted = self.get_component_rich_style("list--muted", partial=True)
        if row.kind not in ("file", "level"):
            return Text(row.text, no_wrap=True)
        window = view.window if view else None
        is_open = window is not None and (row.path == window.path if row.kind == "file" else row.level == window.level)
        mark = "▸" if is_open else " "
        if row.kind == "level" and row.size is not None and window is not None:
            value = f"{row.size:,}{'+' if window.leveled < 1 else ''}"
        else:
            value = "" if row.size is None else byte_size(row.size)
        if row.kind == "file" and len(mark) + cell_len(row.text) + 1 + len(value) > width:
            value = ""  # a name is worth more than its size
        room = max(1, width - len(mark) - len(value) - 1)
        text = Text(no_wrap=True)
        text.append(mark, style=self.get_component_rich_style("files--open", partial=True))
        text.append(f"{shortened(row.text, room):<{room}} ", style="bold" if is_open else "")
        text.append(value, style=muted)
        return text


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
        return (whole.path, whole.line, len(whole.text), whole.asking.problem) if whole else None

    def layout(self, width: int, palette: Palette) -> list[Text]:
        whole = view.whole if (view := self._view()) else None
        if whole is None or width < 4:
            return []
        rows = fields(whole.text)
        lines = [part for row in rows or [whole.text] for part in wrapped(self._field(row, bool(rows), palette), width)]
        if notice := self._notice(whole.is_cut, len(whole.text), whole.line.length, whole.asking.problem):
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
