"""What the logs view shows of a run: its files, the one that is open, a level, a search. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import RETRY_S, waiting_words
from grpo_tui.model.log_search import LogSearch
from grpo_tui.model.log_window import Line, LogWindow
from remote.protocol.rows import UNREADABLE

FILES_S = 5.0
"""Interval between requests for the list of files of a live run …"""
FILES_REST_S = 30.0
"""… and of another one."""
SHOWN = (("", "everything"), ("warning", "warnings"), ("error", "errors"))
"""Levels, and what they are called."""


@dataclass(frozen=True)
class FileRow:
    """A line of the list: a file, a heading, or a level."""

    kind: str
    """``file``, ``heading``, ``note``, ``level`` or ````, an empty line."""
    text: str
    path: str = ""
    size: int | None = None
    level: str = ""


@dataclass
class WholeLine:
    """The line under the cursor, with more of it than the window has."""

    line: Line
    path: str
    text: str
    is_cut: bool
    number: int | None
    is_asked: bool = False
    problem: str = ""

    @property
    def needs_more(self) -> bool:
        """Whether its first 64 kB are to be requested."""
        return self.line.is_cut and not self.is_asked

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Take the line as the box has it."""
        rows = [row for row in reply["lines"] if UNREADABLE not in row]
        if rows and rows[0]["offset"] == self.line.offset:
            self.text, self.is_cut = rows[0].get("text", ""), bool(rows[0].get("cut"))


@dataclass
class LogsView:
    """The view of one run."""

    run: str
    files: list[dict[str, Any]] = field(default_factory=list)
    left_off: int = 0
    is_answered: bool = False
    problem: str = ""
    asked_at: float | None = None
    version: int = 0
    window: LogWindow | None = None
    search: LogSearch | None = None
    wraps: bool = False
    whole: WholeLine | None = None
    """The line under the cursor."""
    _next_at: float = 0.0

    # files ---------------------------------------------------------------------------------------------

    def request_files(self, is_live: bool, now: float | None = None) -> bool:
        """Whether a request for the list of files is due."""
        now = monotonic() if now is None else now
        if self.asked_at is not None or now < self._next_at:
            return False
        self.asked_at = now
        self._next_at = now + (FILES_S if is_live else FILES_REST_S)
        return True

    def answer_files(self, reply: Mapping[str, Any]) -> None:
        """Take the list; the first file is opened."""
        self.files, self.left_off = reply["files"], reply["left_off"]
        self.is_answered, self.problem, self.asked_at = True, "", None
        self.version += 1
        if self.window is None and (readable := [file for file in self.files if UNREADABLE not in file]):
            self.open(readable[0]["path"])

    def fail_files(self, message: str) -> None:
        self.problem, self.asked_at = message, None
        self._next_at = min(self._next_at, monotonic() + RETRY_S)
        self.version += 1

    def instead(self) -> str:
        """What is said without a list of files: what is waited for, or why it failed."""
        return waiting_words(self.asked_at, self.problem)

    def name(self, path: str) -> str:
        """Short name of a file."""
        return next((file.get("name", path) for file in self.files if file["path"] == path), path.rpartition("/")[2])

    def size(self, path: str) -> int:
        return int(next((file.get("size", 0) for file in self.files if file["path"] == path), 0))

    def rows(self) -> list[FileRow]:
        """The list, with the levels of the open file below."""
        rows: list[FileRow] = []
        group, folder = "logs", ""
        for file in self.files:
            if UNREADABLE in file:
                rows.append(FileRow("note", f"unreadable: {file[UNREADABLE]}"))
                continue
            if file.get("group", group) != group:
                group = file["group"]
                rows += [FileRow("", ""), FileRow("heading", group.removeprefix(f"{self.run}_"))]
                folder = ""
            above, _, name = file.get("name", file["path"]).rpartition("/")
            if above != folder:  # two files of one name differ in their folder, which a narrow list would cut
                folder = above
                rows.append(FileRow("heading", f"{folder}/"))
            rows.append(FileRow("file", name, file["path"], file.get("size")))
        if self.left_off:
            rows.append(FileRow("note", f"{self.left_off:,} more files"))
        if (window := self.window) is not None:
            counts = {"": None, "warning": window.warnings, "error": window.errors}
            rows += [FileRow("", ""), FileRow("heading", "show")]
            rows += [FileRow("level", name, window.path, counts[level], level) for level, name in SHOWN]
        return rows

    def update(self) -> None:
        """Follow the cursor with ``whole``."""
        window = self.window
        line = window.current if window is not None else None
        if line is None or window is None:
            self.whole = None
        elif self.whole is None or (self.whole.path, self.whole.line) != (window.path, line):
            self.whole = WholeLine(line, window.path, line.text, line.is_cut, window.number)

    # the open file -------------------------------------------------------------------------------------

    def open(self, path: str) -> None:
        """Show another file: a log at its end, another one at its beginning."""
        at_end = path.endswith((".log", ".jsonl"))
        self.search = None
        self.window = LogWindow(self.run, path, target={} if at_end else {"at": 0}, follows=at_end)
        self.version += 1

    def show_level(self, level: str) -> None:
        """Show every line, only warnings, or only errors, about the line under the cursor."""
        if self.window is not None and level != self.window.level:
            self._again(level, self.window.pattern)
            if self.search is not None:
                self.find(self.search.pattern)

    def next_level(self) -> str:
        """Turn to the next level; returns what it is called."""
        levels = [level for level, _ in SHOWN]
        level = levels[(levels.index(self.window.level) + 1) % len(levels)] if self.window else ""
        self.show_level(level)
        return dict(SHOWN)[level]

    def find(self, pattern: str) -> None:
        """Search for a regular expression; "" ends the search."""
        window = self.window
        if window is None:
            return
        if pattern != window.pattern:
            self._again(window.level, pattern)
            window = self.window
        self.search = None
        if pattern and window is not None:
            line = window.current
            self.search = LogSearch(self.run, window.path, pattern, window.level, line.offset if line else window.size)
        self.version += 1

    def _again(self, level: str, pattern: str) -> None:
        """Read the window anew, about the line under the cursor, which stays on the screen until then."""
        old = self.window
        assert old is not None
        line = old.current
        target = {} if old.follows or line is None else {"at": line.offset}
        new = LogWindow(self.run, old.path, level, pattern, target, old.follows)
        new.take_place(old)
        if level == old.level:
            new.lines, new.cursor, new.top = old.lines, old.cursor, old.top
            new.is_first, new.is_last, new.end = old.is_first, old.is_last, old.end
        self.window = new
        self.version += 1

    def jump(self) -> bool:
        """Show the match that a key or a new search asked for, once it is known; returns whether it is."""
        search, window = self.search, self.window
        if search is None or window is None:
            return False
        if (line := window.current) is not None and window.target is None:
            search.cursor = line.offset
        found = search.jump()
        if found is None:
            return False
        search.cursor = found
        window.go_to(found)
        return True
