"""The view of a run's files, line by line, and its requests."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input

from grpo_tui import files
from grpo_tui.background import refresh_log_files
from grpo_tui.box.asking import CURSOR_S
from grpo_tui.box.formatting import byte_size, percent
from grpo_tui.box.store import Store
from grpo_tui.kit.desk import Desk, ShowView
from grpo_tui.kit.panel import Line, link_age
from grpo_tui.views.logs.lines import LogLinesPanel
from grpo_tui.views.logs.model.logs import SHOWN, LogsView
from grpo_tui.views.logs.model.window import LogWindow
from grpo_tui.views.logs.panels import LogFilesPanel, WholeLinePanel, WholeLineSource
from grpo_tui.views.view import ViewScreen, bindings_of
from remote.events import Link
from remote.protocol import RemoteError
from remote.protocol.logs import MAX_BYTES, MAX_CHARACTERS

if TYPE_CHECKING:
    from grpo_tui.views.logs.model.logs import LogSearch, WholeLine


async def refresh_lines(app: Desk, window: LogWindow, params: dict[str, Any]) -> None:
    """Request lines about the cursor."""
    try:
        window.answer(params, await app.request("read_log", **params))
    except RemoteError as error:
        window.fail(params, error.message)
    finally:
        window.asking.cancel(params)
    app.tick_view()


async def refresh_log_search(app: Desk, search: LogSearch, params: dict[str, Any]) -> None:
    """Request what a search has found so far; the box continues it then."""
    try:
        search.answer(await app.request("search_log", **params))
    except RemoteError as error:
        search.fail(error.code, error.message)
    finally:
        search.asking.cancel("matches")
    app.tick_view()


async def refresh_whole(app: Desk, view: LogsView, whole: WholeLine) -> None:
    """Request the first 64 kB of the line under the cursor."""
    await asyncio.sleep(CURSOR_S)
    if view.whole is not whole:
        return
    params = {"run": view.run, "path": whole.path, "at": whole.line.offset, "after": 1, "characters": MAX_CHARACTERS}
    try:
        whole.answer(await app.request("read_log", reply_s=30.0, **params))
    except RemoteError as error:
        whole.asking.end("line", error.message)
    app.tick_view()


MAX_SAVED = 16 << 20
"""Bytes of a file; of a larger one, the part about the cursor."""
TOLD = 4 << 20
"""A save of more bytes says that it has begun."""


async def save_part(app: Desk, run: str, path: str, middle: int, size: int) -> None:
    """Save a file, or ``MAX_SAVED`` bytes of it about an offset, and say where."""
    start = 0 if size <= MAX_SAVED else min(max(0, middle - MAX_SAVED // 2), size - MAX_SAVED)
    end = min(size, start + MAX_SAVED)
    if end - start > TOLD:
        app.receipt(f"saving {byte_size(end - start)} …")
    data = bytearray()
    try:
        while start + len(data) < end:
            count = min(MAX_BYTES, end - start - len(data))
            reply = await app.request("log_bytes", run=run, path=path, at=start + len(data), count=count)
            if not reply["data"]:
                break  # it was truncated
            data += reply["data"]
        file = files.new_file(f"{run}-{path.rpartition('/')[2]}")
        file.write_bytes(data)
    except RemoteError as error:
        app.warn(f"{error.message} {error.hint}", title="not saved")
        return
    except OSError as error:
        app.warn(f"{error.filename}: {error.strerror}", title="not saved")
        return
    detail = str(file)
    if end - start < size:
        root = str((app.store.host or {}).get("root", ""))
        whole = f"scp {shlex.quote(f'{app.store.box}:{root}/{path}')} ."
        detail += f" has {byte_size(end - start)} about the cursor, of {byte_size(size)}; all of it: {whole}"
    app.receipt(f"saved: {path.rpartition('/')[2]}, {byte_size(len(data))}", detail)


LEAST_ROWS = 19
"""Rows of a terminal that has room for the line under the cursor."""
HINTS = {
    "search": "a regular expression (lower case matches both cases); enter searches on the box, esc ends the search",
    "line": "a line number, or a position in the file such as 86 %",
}


class AboutLogs(Line):
    """One line: the file, the level, the search, and whether the end is followed."""

    def __init__(self, store: Store, screen: LogsScreen, *, id: str) -> None:
        super().__init__(store, id=id)
        self._logs = screen

    def state(self) -> object:
        return (self.render(), self.size.width)

    def render(self) -> Content:
        view = self._logs.view
        window = view.window if view else None
        text = Content.from_markup("[bold $primary]logs[/]")
        if view is None or window is None:
            return text
        text += Content.from_markup("   $name", name=view.listing.name(window.path))
        if window.level:
            text += Content.from_markup("   [$warning]only $level[/]", level=dict(SHOWN)[window.level])
        if view.search is not None:
            text += Content.from_markup("   [$warning]/$pattern[/]   ", pattern=view.search.pattern) + self._found(view)
        end = self._end(window)
        gap = self.size.width - 2 - text.cell_length - end.cell_length
        return text + Content(" " * gap) + end if gap > 0 else end + Content("   ") + text

    def _found(self, view: LogsView) -> Content:
        """``match 3 of 17 (searched on the box: 1.4 GB)``."""
        search = view.search
        assert search is not None
        if problem := search.asking.problem:
            return Content.from_markup("[$error]$problem[/]", problem=problem)
        if search.searched < 1:
            return Content.from_markup(
                "[$text-muted]$found so far, $share searched; esc ends the search[/]",
                found=_matches(search.total), share=percent(search.searched),
            )  # fmt: skip
        place = f"match {search.index:,} of {search.total:,}" if search.index else _matches(search.total)
        size = byte_size(search.size)
        return Content.from_markup("$place [$text-muted](searched on the box: $size)[/]", place=place, size=size)

    def _end(self, window: LogWindow) -> Content:
        if self.store.link.state in (Link.LOST, Link.REFUSED):
            return Content.from_markup(
                "[$error]$link; these lines may be out of date[/]", link=link_age(self.store).text
            )
        if window.follows:
            return Content.from_markup("[$success]following[/]")
        if new := window.new_lines:
            paused = f"paused, {new:,} new line{'s' if new > 1 else ''}"
            return Content.from_markup("[$warning]$paused[/]", paused=paused)
        return Content.from_markup("[$text-muted]paused[/]")


def _matches(count: int) -> str:
    return "no match" if not count else f"{count:,} match{'es' if count > 1 else ''}"


class LogsScreen(ViewScreen):
    """The files of the selected run."""

    NAME = "logs"
    MAIN = "#lines"
    FILTER_HINT = HINTS["search"]
    BINDINGS: ClassVar = bindings_of("logs")

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk)
        self._asks_for = "search"
        self._typed = ""
        self._whole_line = False
        self._came_from_charts = False
        self._views: dict[str, LogsView] = {}
        """What is shown of each run of the box."""

    @property
    def view(self) -> LogsView | None:
        """The view of the selected run, with its first file open at first."""
        if (listing := self.store.log_files) is None:
            return None
        view = self._views.setdefault(listing.run, LogsView(listing))
        view.open_first()
        return view

    @property
    def window(self) -> LogWindow | None:
        return self.view.window if self.view else None

    def panels(self) -> Iterable[Widget]:
        store = self.store
        source = WholeLineSource(store, lambda: self.view, lambda: self.app.key("log_copy"))
        yield AboutLogs(store, self, id="about")
        yield Horizontal(
            LogFilesPanel(store, lambda: self.view, id="files"),
            Vertical(
                LogLinesPanel(store, lambda: self.view, id="lines"),
                WholeLinePanel(store, [source], id="whole"),
                id="right",
            ),
            id="body",
        )  # fmt: skip

    def box_changed(self) -> None:
        self._views.clear()

    def update(self) -> None:
        view = self.view
        if view is not None:
            view.jump()
            view.update()
        self.query_one("#whole").display = self._whole_line or self.size.height >= LEAST_ROWS

    def request_data(self) -> None:
        """Request the files, the lines about the cursor, and what a search has found."""
        app, view = self.app, self.view
        if view is None:
            return
        is_live = self.store.run is not None and self.store.run.is_live
        if view.listing.due(is_live):
            app.work("log files", partial(refresh_log_files, app, view.listing))
        window, search, whole = view.window, view.search, view.whole
        if window is not None and (params := window.due(is_live)) is not None:
            app.work("log lines", partial(refresh_lines, app, window, params))
        if search is not None and (params := search.due(is_live)) is not None:
            app.work("log search", partial(refresh_log_search, app, search, params))
        if whole is not None and whole.due():
            app.work("log line", partial(refresh_whole, app, view, whole))

    # files and lines -----------------------------------------------------------------------------------

    def on_log_files_panel_opened(self, event: LogFilesPanel.Opened) -> None:
        self.open_row()

    def on_log_files_panel_left(self) -> None:
        self.query_one("#lines").focus()

    def on_log_lines_panel_left(self) -> None:
        self.query_one("#files").focus()

    def open_row(self) -> None:
        """Open the file under the cursor of the list, or show the lines of a level."""
        row, view = self.query_one(LogFilesPanel).current, self.view
        if row is None or view is None:
            return
        if row.kind == "level":
            view.show_level(row.level)
        else:
            view.open(row.path)
        self.query_one("#lines").focus()
        self._show()

    def open_file(self, path: str) -> None:
        """Show a file: a log at its end, another one at its beginning."""
        if (view := self.view) is not None:
            view.open(path)

    def open_line(self, path: str, offset: int) -> None:
        """Show the line of a file that begins at an offset, from the charts."""
        if (view := self.view) is not None:
            view.open(path)
            if view.window is not None:
                view.window.go({"at": offset})
            self._came_from_charts = True

    def action_open(self) -> None:
        """Open the file under the cursor, or show the whole line under it."""
        if self.query_one(LogFilesPanel).has_focus:
            self.open_row()
        elif self.maximized is not None:
            self.back()
        elif self.window is not None and self.window.current is not None:
            self._whole_line = True
            panel = self.query_one("#whole", WholeLinePanel)
            panel.display = True
            self.maximize(panel, container=False)
            panel.focus()
            self.call_after_refresh(self.tick)

    def minimize(self) -> None:
        """Restore the screen, also where Textual does."""
        super().minimize()
        self._whole_line = False
        self.set_focus(self.query_one("#lines"))
        self.call_after_refresh(self.tick)

    def action_follow(self) -> None:
        """Follow the end of the file, or stay on this line."""
        if (window := self.window) is not None:
            window.stay() if window.follows else window.to_end()
            self._show()

    def action_toggle_wrap(self) -> None:
        """Wrap or truncate long lines."""
        view = self.view
        if view is not None:
            view.wraps = not view.wraps
            self._show()
        self.app.receipt("long lines are wrapped" if view is not None and view.wraps else "long lines are truncated")

    def action_next_level(self) -> None:
        """Show every line, only warnings, or only errors."""
        if self.view is not None:
            self.view.next_level()
            self._show()

    def action_step_match(self, by: int) -> None:
        """Go to the next (+1) or previous (-1) match of the search."""
        view = self.view
        if view is None or view.search is None:
            self.app.warn(f"{self.app.key('log_search')} searches")
            return
        search = view.search
        search.wants, search.is_new = search.wants + by, False
        jumped = view.jump()
        if not jumped and not search.wants:
            other = self.app.key("match_previous" if by > 0 else "match_next")
            self.app.warn(
                f"no {'later' if by > 0 else 'earlier'} match; {other} goes back" if search.total else "no match"
            )
        self._show()

    def _show(self) -> None:
        self.request_data()
        self.tick()

    # copies --------------------------------------------------------------------------------------------

    def action_copy(self) -> None:
        """Copy the line under the cursor, or the path of the file."""
        view, row = self.view, self.query_one(LogFilesPanel).current
        if view is None or view.window is None:
            return
        if self.query_one(LogFilesPanel).has_focus and row is not None and row.path:
            root = str((self.store.host or {}).get("root", "")).rstrip("/")
            self.app.copy(f"{root}/{row.path}" if root else row.path, f"path of {view.listing.name(row.path)}")
        elif view.whole is not None:
            number = "a line" if view.whole.number is None else f"line {view.whole.number:,}"
            part = "the beginning of " if view.whole.is_cut else ""
            self.app.copy(view.whole.text, f"{part}{number} of {view.listing.name(view.whole.path)}")

    async def action_save(self) -> None:
        """Save the file to this machine (of a large file, the part around the cursor)."""
        view = self.view
        if view is None or view.window is None:
            return
        path, line = view.window.path, view.window.current
        known = next((file.get("size") for file in view.listing.files if file.get("path") == path), None)
        size = view.window.size or int(known or 0)  # it may not be read yet
        if not size:
            self.app.warn(f"{view.listing.name(path)} is empty, or not read yet", title="not saved")
            return
        await save_part(self.app, view.run, path, line.offset if line is not None else size, size)

    # the line of text ----------------------------------------------------------------------------------

    @property
    def filter(self) -> str:
        return self.view.search.pattern if self._asks_for == "search" and self.view and self.view.search else ""

    def action_ask_for(self, what: str) -> None:
        """Show the line that takes a search, or the number of a line."""
        self._asks_for, self._typed = what, ""
        self.query_one("#filter", Input).placeholder = HINTS[what]
        self.action_show_filter()

    def set_filter(self, text: str) -> None:
        self._typed = text

    def filter_closed(self) -> None:
        view = self.view
        if view is None or view.window is None:
            return
        if self._asks_for == "search":
            view.find(self._typed)
        elif self._typed and (target := place_of(self._typed)) is None:
            self.app.warn(f"'{self._typed}' is neither a line number nor a position such as 86 %")
        elif self._typed and target is not None:
            view.window.go(target)
        self._show()

    def back(self) -> bool:
        """One step out: the whole line, the search, the level; at last the charts if the view was opened from them.

        Returns False if there was none.
        """
        view = self.view
        if self.maximized is not None:
            self.minimize()
        elif view is not None and view.search is not None:
            view.find("")
        elif view is not None and view.window is not None and view.window.level:
            view.show_level("")
        elif self._came_from_charts:
            self._came_from_charts = False
            self.app.post_message(ShowView("charts"))
            return True
        else:
            return False
        self._show()
        return True


def place_of(text: str) -> dict[str, float | int] | None:
    """The place that a text names: ``1,204,331`` or ``86 %``; None if it names none."""
    digits = text.replace(",", "").replace("_", "").replace(" ", "")
    try:
        if digits.endswith("%"):
            share = float(digits[:-1]) / 100
            return {"share": share} if 0 <= share <= 1 else None
        number = int(digits)
    except ValueError:
        return None
    return {"line": number} if 1 <= number < 2**62 else None
