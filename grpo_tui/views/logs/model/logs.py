"""What the logs view shows of a run: its files, the one that is open, a level, a search. No Textual."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.box.asking import LIVE_S, SOON_S, Asking
from grpo_tui.box.log import LogFiles
from grpo_tui.views.logs.model.window import LogWindow, ShownLine
from remote.protocol.rows import UNREADABLE
from remote.protocol.text import clean

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

    line: ShownLine
    path: str
    text: str
    is_cut: bool
    number: int | None
    asking: Asking = field(default_factory=Asking)

    def due(self) -> bool:
        """Whether to ask for its first 64 kB now; the request is in flight then."""
        return self.line.is_cut and self.asking.begin("line")

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Take the line as the box has it."""
        self.asking.end("line")
        rows = [row for row in reply["lines"] if UNREADABLE not in row]
        if rows and rows[0]["offset"] == self.line.offset:
            self.text, self.is_cut = rows[0].get("text", ""), bool(rows[0].get("cut"))


@dataclass
class LogsView:
    """The view of one run."""

    listing: LogFiles
    window: LogWindow | None = None
    search: LogSearch | None = None
    wraps: bool = False
    whole: WholeLine | None = None
    """The line under the cursor."""

    @property
    def run(self) -> str:
        return self.listing.run

    def open_first(self) -> None:
        """Open the first file, as soon as it is known, if none is open."""
        if self.window is None and (readable := [file for file in self.listing.files if UNREADABLE not in file]):
            self.open(readable[0]["path"])

    def rows(self) -> list[FileRow]:
        """The list, with the levels of the open file below."""
        rows: list[FileRow] = []
        group, folder = "logs", ""
        for file in self.listing.files:
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
        if self.listing.left_off:
            rows.append(FileRow("note", f"{self.listing.left_off:,} more files"))
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


MARGIN = 10
"""Matches that are known on each side of the cursor."""


@dataclass
class LogSearch:
    """A search for a regular expression."""

    run: str
    path: str
    pattern: str
    level: str = ""
    cursor: int = 0
    """Where the line under the cursor begins."""
    around: list[int] = field(default_factory=list)
    """Where matching lines begin, in order."""
    before: int = 0
    """Matching lines before those …"""
    after: int = 0
    """… and after."""
    total: int = 0
    searched: float = 0.0
    size: int = 0
    is_kept: bool = True
    is_refused: bool = False
    """Whether the pattern is not a regular expression."""
    version: int = 0
    asking: Asking = field(default_factory=Asking)
    wants: int = 0
    """Distance to the match to show, in matches; negative: backward; 0: none is to be shown."""
    is_new: bool = True
    """Whether the nearest match is to be shown, the first time."""
    _asked_for: int = -1

    def due(self, is_live: bool) -> dict[str, Any] | None:
        """The parameters of the request to send now, which is then in flight; None if there is none."""
        is_short = self.cursor != self._asked_for and (self.wants or self._is_short())
        pause = 0.0 if is_short else SOON_S if is_live or self.searched < 1 else LIVE_S
        if self.is_refused or not self.asking.begin("matches", pause):
            return None
        self._asked_for = self.cursor
        return {
            "run": self.run, "path": self.path, "pattern": self.pattern, "level": self.level, "at": self.cursor,
        }  # fmt: skip

    def _is_short(self) -> bool:
        """Whether few of the matches near the cursor are known."""
        place = bisect_left(self.around, self.cursor)
        return (self.before > 0 and place < MARGIN) or (self.after > 0 and len(self.around) - place < MARGIN)

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Take the reply."""
        self.asking.end("matches")
        self.around, self.before, self.after = reply["around"], reply["before"], reply["after"]
        self.total, self.searched, self.size = reply["total"], reply["searched"], reply["size"]
        self.is_kept = reply["kept"]
        self.version += 1

    def fail(self, code: str, message: str) -> None:
        """The request failed."""
        self.asking.end("matches", message)
        self.is_refused = code == "bad_request"
        self.version += 1

    @property
    def index(self) -> int | None:
        """Which match the cursor is on, from 1; None if it is on none, or older matches are not known yet."""
        place = bisect_left(self.around, self.cursor)
        if self.searched < 1 or place == len(self.around) or self.around[place] != self.cursor:
            return None
        return self.before + place + 1

    def jump(self) -> int | None:
        """Where the match begins that is to be shown now; None if there is none, or it is not known yet."""
        if self.is_new:
            return self._nearest()
        found = None
        while self.wants:
            by = 1 if self.wants > 0 else -1
            following = self.neighbor(by)
            if following is None:
                if self._is_known(by):
                    self.wants = 0
                break
            found = self.cursor = following
            self.wants -= by
        return found

    def neighbor(self, by: int) -> int | None:
        """The match after the cursor (+1), or before it (-1), as far as it is known here."""
        if by > 0:
            place = bisect_right(self.around, self.cursor)
            return self.around[place] if place < len(self.around) else None
        place = bisect_left(self.around, self.cursor)
        return self.around[place - 1] if place else None

    def _is_known(self, by: int) -> bool:
        """Whether there is none in that direction."""
        if by > 0:
            return self.asking.is_answered and self.after == 0
        return self.asking.is_answered and self.before == 0 and self.searched >= 1

    def _nearest(self) -> int | None:
        """The first match at the cursor or after it, else the last one before it."""
        is_passed = self.cursor >= self.size * (1 - self.searched)
        if not self.asking.is_answered or not (is_passed or self.searched >= 1):
            return None
        place = bisect_left(self.around, self.cursor)
        if place < len(self.around):
            self.is_new = False
            return self.around[place]
        if place:
            self.is_new = False
            return self.around[place - 1]
        self.is_new = self.searched < 1
        return None


INDENT = 2
MAX_DEPTH = 12
MAX_ROWS = 5_000


SUPERSEDED = "superseded"
"""Of a resume: ranges of bytes, which come last."""


def fields(text: str) -> list[str] | None:
    """One line per field of a JSON object, and more for a text of several lines; None for anything else.

    Of an object that was cut, the last field is as it came.
    """
    if not text.startswith("{"):
        return None
    try:
        found = json.loads(text)
        if SUPERSEDED in found:
            found[SUPERSEDED] = found.pop(SUPERSEDED)
        rows = _rows(found, 0)
    except (ValueError, RecursionError):
        rows = _of_cut(text)
    return rows[:MAX_ROWS] if rows else None


def _of_cut(text: str) -> list[str]:
    """The whole fields of a cut object, what there is of a text, and anything else as it is."""
    decode = json.JSONDecoder().raw_decode
    rows: list[str] = []
    place = 1
    while True:
        place = _after(text, place, " ,")
        try:
            key, after = decode(text, place)
            after = _after(text, after, " :")
        except (ValueError, RecursionError):
            return [*rows, text[place:]] if rows and place < len(text) else rows
        try:
            value, end = decode(text, after)
        except (ValueError, RecursionError):
            begun = _begun_text(text[after:])
            return [*rows, *(_rows({key: begun}, 0) if begun is not None else [text[place:]])]
        if isinstance(value, (int, float)) and text[end : end + 1] not in (",", "}", " "):
            return [*rows, text[place:]]  # digits or an exponent may be missing
        place = end
        rows += _rows({key: value}, 0)


def _begun_text(text: str) -> str | None:
    """A string without its end; an escape at the end that is not whole is left out."""
    for left_out in range(7):
        try:
            value = json.loads(text[: len(text) - left_out] + '"')
        except ValueError:
            continue
        return value if isinstance(value, str) else None
    return None


def _after(text: str, place: int, characters: str) -> int:
    while place < len(text) and text[place] in characters:
        place += 1
    return place


def _rows(value: Any, depth: int) -> list[str]:
    """An object or a list, indented by its depth."""
    pad = " " * (INDENT * depth)
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    rows: list[str] = []
    for key, item in items:
        name = f"{pad}{clean(str(key), '')}: "
        if isinstance(item, (dict, list)) and item and depth < MAX_DEPTH and not _is_short(item):
            rows += [name.rstrip(), *_rows(item, depth + 1)]
        elif isinstance(item, str):
            first, *more = clean(item, "\n\t").expandtabs(4).split("\n")
            rows += [name + first, *(" " * len(name) + line for line in more)]
        else:
            rows.append(name + json.dumps(item, ensure_ascii=False))
    return rows


def _is_short(item: Any) -> bool:
    """Whether it is read best in one line: numbers."""
    values = item.values() if isinstance(item, dict) else item
    return len(item) <= 8 and all(isinstance(value, (int, float, bool, type(None))) for value in values)
