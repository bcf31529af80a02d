"""Lines of a file of any size: only those around the cursor are known, and only those on the screen are painted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.content import Content
from textual.message import Message

from grpo_tui.box.formatting import percent
from grpo_tui.box.store import Store
from grpo_tui.kit.lists import ALL, CURSOR, PAGE, VirtualPanel
from grpo_tui.kit.panel import waiting
from grpo_tui.kit.sources import wrapped
from grpo_tui.views.logs.model.logs import LogsView
from grpo_tui.views.logs.model.window import LogWindow, ShownLine

GLYPHS = {"error": "✖", "warning": "▲"}
WHEEL = 3
NEAR = 4
"""A cursor that moves further off the screen is put into its middle."""
GUTTER = 3
"""Cells of the cursor, the level, and a space."""


class LogLinesPanel(VirtualPanel):
    """The lines of the open file. It keeps its own top line: a file has no height in rows that is known."""

    COMPONENT_CLASSES: ClassVar = {
        "list--cursor", "list--cursor-blurred", "list--muted", "lines--error", "lines--warning", "lines--match",
        "lines--mark",
    }  # fmt: skip
    BINDINGS: ClassVar = [("left", "files"), ("h", "vi('h')")]

    class Left(Message):
        """The keys go to the list of files."""

    def __init__(self, store: Store, view: Callable[[], LogsView | None], *, id: str) -> None:
        super().__init__(store, id=id)
        self._view = view
        self._laid_out: tuple[object, list[tuple[int, Text]]] = (None, [])
        """Of what, and each row of the screen: the index of its line, and its text."""

    @property
    def window(self) -> LogWindow | None:
        view = self._view()
        return view.window if view else None

    def state(self) -> object:
        window, view = self.window, self._view()
        known = (id(window), window.version, window.cursor, window.notice) if window else None
        said = "" if window and window.lines else self._empty()
        return (known, said, view and view.wraps, self.size, self.app.theme, self.has_focus)

    def refresh_titles(self) -> None:
        window, view = self.window, self._view()
        if window is None or view is None:
            self.set_titles("lines")
            return
        title = Content.from_markup("$name", name=view.listing.name(window.path))
        if window.notice:
            title += Content.from_markup(" [$warning]$notice[/]", notice=window.notice)
        self.set_titles(title, self._position(window))

    def _position(self, window: LogWindow) -> Content:
        """``line 1,204,331 of about 1,400,000 · 86 %``."""
        if (window.target is not None or window.asking.problem) and (wait := waiting(window.asking)):
            return wait
        if not window.lines:
            return Content()
        share = percent(window.share)
        if window.number is None:
            counted = "" if window.leveled >= 1 else f"counted in {percent(window.leveled)} so far · "
            return Content.from_markup("$counted[$text-muted]$share of the file[/]", counted=counted, share=share)
        about = "" if window.is_exact else "about "
        return Content.from_markup(
            "[$text-muted]line[/] $about$number [$text-muted]of[/] $about$total [$text-muted]· $share[/]",
            number=f"{window.number:,}", total=f"{max(window.total, window.number):,}", share=share, about=about,
        )  # fmt: skip

    # moving --------------------------------------------------------------------------------------------

    def action_move(self, by: int) -> None:
        """Move the cursor; to an end of the file, wherever that is."""
        window = self.window
        if window is None:
            return
        if abs(by) == ALL:
            window.to_end() if by > 0 else window.to_start()
        else:
            height = max(1, self.scrollable_content_region.height - 1)
            window.move(by * height // PAGE if abs(by) == PAGE else by)
        self.tick()

    def action_files(self) -> None:
        self.post_message(self.Left())

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        event.stop()
        self.action_move(WHEEL)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        event.stop()
        self.action_move(-WHEEL)

    def on_click(self, event: events.Click) -> None:
        row = event.get_content_offset_capture(self).y
        rows = self._rows()
        if self.window is not None and 0 <= row < len(rows):
            self.window.put(rows[row][0])
            self.tick()

    # paint ---------------------------------------------------------------------------------------------

    def _rows(self) -> list[tuple[int, Text]]:
        """The rows of the screen, so that the cursor is on one of them."""
        window, view = self.window, self._view()
        width, height = self.scrollable_content_region.size
        if window is None or view is None or width <= GUTTER:
            return []
        made_of = (self.state(), window.top, width, height)
        if made_of == self._laid_out[0]:
            return self._laid_out[1]
        room = width - GUTTER
        if window.cursor < window.top:
            window.top = window.cursor if window.top - window.cursor <= NEAR else max(0, window.cursor - height // 2)
        rows = self._fill(window, view.wraps, room, height)
        if rows and window.cursor - rows[-1][0] > NEAR:
            window.top = max(0, window.cursor - height // 2)
            rows = self._fill(window, view.wraps, room, height)
        while rows and rows[-1][0] < window.cursor and window.top < window.cursor:
            window.top += 1
            rows = self._fill(window, view.wraps, room, height)
        while len(rows) < height and window.top > 0:  # after the last line there is none
            window.top -= 1
            rows = self._fill(window, view.wraps, room, height)
        if view.wraps and rows and self._is_cut(rows, window.cursor, window, room, height):
            window.top = min(window.cursor, window.top + 1)
            rows = self._fill(window, view.wraps, room, height)
        self._laid_out = ((self.state(), window.top, width, height), rows)
        return rows

    def _fill(self, window: LogWindow, wraps: bool, room: int, height: int) -> list[tuple[int, Text]]:
        rows: list[tuple[int, Text]] = []
        for index in range(window.top, len(window.lines)):
            text = self._text(window.lines[index])
            parts = wrapped(text, room) if wraps else [_from_match(text, window.lines[index], room)]
            rows += [(index, part) for part in parts]
            if len(rows) >= height:
                break
        return rows[:height]

    def _is_cut(self, rows: list[tuple[int, Text]], index: int, window: LogWindow, room: int, height: int) -> bool:
        """Whether a wrapped line begins on the screen and ends below it."""
        shown = sum(1 for at, _ in rows if at == index)
        return window.top < index and shown < min(height, len(wrapped(self._text(window.lines[index]), room)))

    def _text(self, line: ShownLine) -> Text:
        text = Text(line.text, no_wrap=True)
        if line.level:
            text.stylize(self.get_component_rich_style(f"lines--{line.level}", partial=True))
        for start, end in line.marks:
            text.stylize(self.get_component_rich_style("lines--match", partial=True), start, end)
        return text

    def line_at(self, y: int, style: Style) -> tuple[Sequence[Segment], Text, Style]:
        window, rows = self.window, self._rows()
        if y >= len(rows) or window is None:
            text = Text(self._empty() if y == 0 and not rows else "")
            text.stylize_before(self.get_component_rich_style("list--muted", partial=True))
        else:
            index, part = rows[y]
            line = window.lines[index]
            is_begin = y == 0 or rows[y - 1][0] != index
            text = Text(no_wrap=True)
            is_current = index == window.cursor
            mark = self.get_component_rich_style("lines--mark", partial=True)
            text.append(CURSOR if is_current else " ", style=mark)
            level = self.get_component_rich_style(f"lines--{line.level}", partial=True) if line.level else ""
            text.append(f"{GLYPHS.get(line.level, ' ') if is_begin else ' '} ", style=level)
            text.append_text(part)
            if is_current:
                style += self.get_component_rich_style("list--cursor" if self.has_focus else "list--cursor-blurred")
        return (), text, style

    def _empty(self) -> str:
        window, view = self.window, self._view()
        if view is None:
            return "no run selected: 1 shows the list of runs"
        if window is None:
            return view.listing.instead("this run has no files yet", self.store.connected)
        if window.asking.problem or not window.is_answered or window.target is not None:
            return window.asking.instead(self.store.connected)
        if window.level:
            counted = "" if window.leveled >= 1 else f" in the {percent(window.leveled)} that are examined so far"
            nothing = f"no {'errors' if window.level == 'error' else 'warnings'} in this file{counted}"
            return nothing if window.level == "error" else nothing + self._health()
        return "the file is empty"

    def _health(self) -> str:
        """Health has warnings of its own, which train_log.jsonl logs."""
        health = self.store.logs.health if self.store.logs else None
        count = len([one for one in health.now if one.tone != "muted"]) if health is not None else 0
        what, them = ("1 warning", "it") if count == 1 else (f"{count} warnings", "them")
        return f"; health has {what}: train_log.jsonl has {them}, {self.key('home')} shows {them}" if count else ""


def _from_match(text: Text, line: ShownLine, room: int) -> Text:
    """A line whose first match would be cut off, from shortly before the match on."""
    if not line.marks or line.marks[0][1] < room or len(line.text) <= room:
        return text
    return Text("…", no_wrap=True) + text[max(0, line.marks[0][0] - room // 3) :]
