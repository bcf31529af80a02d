"""The lines of one file that are known here: a window around the cursor, which follows the end or stays. No Textual."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from grpo_tui.box.asking import LIVE_S, SOON_S, Asking
from remote.protocol.rows import UNREADABLE

LOADED = 200
"""Lines that are requested at once …"""
MARGIN = 100
"""… when fewer than this many are known on one side of the cursor."""
KEPT = 2_000

Params = dict[str, Any]


@dataclass(frozen=True)
class ShownLine:
    """A line of a log."""

    offset: int
    length: int = 0
    text: str = ""
    is_cut: bool = False
    is_open: bool = False
    level: str = ""
    marks: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any], offset: int) -> ShownLine:
        """From a row that passed the gate. One that cannot be read takes an offset."""
        if reason := row.get(UNREADABLE):
            return cls(offset, text=f"(unreadable: {reason})", level="error")
        marks = tuple((pair[0], pair[1]) for pair in row.get("marks", ()) if len(pair) == 2)
        return cls(
            int(row["offset"]), int(row.get("length", 0)), row.get("text", ""), bool(row.get("cut")),
            bool(row.get("open")), row.get("level", ""), marks,
        )  # fmt: skip


@dataclass
class LogWindow:
    """One file as it is shown: ``level`` and ``pattern`` are fixed, another choice makes another window."""

    run: str
    path: str
    level: str = ""
    pattern: str = ""
    target: Params | None = field(default_factory=dict)
    """The place that is shown next, as parameters of ``read_log``; {} = the end; None = there is one."""
    follows: bool = True
    """Whether the cursor stays on the last line."""
    lines: list[ShownLine] = field(default_factory=list)
    cursor: int = 0
    """Index in ``lines``."""
    top: int = 0
    """Index of the first line on the screen."""
    is_first: bool = False
    is_last: bool = False
    end: int = 0
    file: str = ""
    size: int = 0
    first_number: int = 0
    total: int = 0
    counted: float = 0.0
    warnings: int = 0
    errors: int = 0
    leveled: float = 0.0
    is_answered: bool = False
    notice: str = ""
    """What happened to the file."""
    version: int = 0
    asking: Asking = field(default_factory=Asking)
    """For lines: the key is the parameters."""
    _is_dry: bool = False
    """Whether the last request for more lines found none yet."""
    _owed: int = 0
    """Rows that a key moved the cursor beyond the lines that are known."""
    _seen_total: int | None = None
    """Lines of the file when the reader left its end; None until they are counted."""
    _line: int | None = None
    """The number of the line that was asked for while the numbers are estimates."""

    # facts ---------------------------------------------------------------------------------------------

    @property
    def current(self) -> ShownLine | None:
        """The line under the cursor."""
        return self.lines[self.cursor] if 0 <= self.cursor < len(self.lines) else None

    @property
    def number(self) -> int | None:
        """Number of the line under the cursor; None where lines are left out."""
        return None if self.level or not self.lines else self.first_number + self.cursor

    @property
    def is_exact(self) -> bool:
        """Whether line numbers are exact."""
        return self.counted >= 1

    @property
    def share(self) -> float:
        """Where the cursor is in the file's bytes."""
        line = self.current
        if line is None or not self.size:
            return 1.0
        return min(1.0, (line.offset + line.length) / self.size)

    @property
    def new_lines(self) -> int:
        """Lines that were added since the reader left the end."""
        return 0 if self.follows or self._seen_total is None else max(0, self.total - self._seen_total)

    # the reader ----------------------------------------------------------------------------------------

    def move(self, by: int) -> None:
        """Move the cursor; beyond the lines that are known, as soon as they are."""
        wanted = self.cursor + by
        self.cursor = min(max(0, wanted), max(0, len(self.lines) - 1))
        beyond = wanted - self.cursor
        known_end = self.is_first if beyond < 0 else self.is_last
        self._owed = 0 if known_end or not beyond else self._owed + beyond
        self._line = None
        self._set_follows(self.is_last and not self._owed and self.cursor == len(self.lines) - 1 and by > 0)
        self.version += 1

    def put(self, index: int) -> None:
        """Put the cursor on a line that is known."""
        self._owed = 0
        self.move(index - self.cursor)

    def go(self, target: Params) -> None:
        """Show another place: ``{}`` is the end, which is followed."""
        self.target, self._owed, self._line = target, 0, target.get("line")
        self._set_follows(not target)
        self.asking.forget()
        self.version += 1

    def to_end(self) -> None:
        """Show the end and follow it."""
        if self.is_last and self.target is None and self.lines:
            self.cursor, self._owed, self._line = len(self.lines) - 1, 0, None
            self._set_follows(True)
            self.version += 1
        else:
            self.go({})

    def to_start(self) -> None:
        """Show the beginning."""
        if self.is_first and self.target is None and self.lines:
            self.put(0)
        else:
            self.go({"at": 0})

    def stay(self) -> None:
        """Stay on this line while the file grows."""
        self._set_follows(False)
        self.version += 1

    def go_to(self, offset: int) -> None:
        """Show the line that begins at an offset."""
        found = next((index for index, line in enumerate(self.lines) if line.offset == offset), None)
        if found is None or self.target is not None:
            self.go({"at": offset})
        else:
            self._owed, self._line = 0, None
            self._set_follows(False)
            self.cursor = found
            self.version += 1

    def _set_follows(self, follows: bool) -> None:
        if self.follows and not follows:
            self._seen_total = self.total if self.is_answered and self.is_exact else None
        self.follows = follows

    def take_place(self, old: LogWindow) -> None:
        """Continue from a window of the same file: its size, its counts, and since when lines are new."""
        self.size, self.total, self.counted = old.size, old.total, old.counted
        self.warnings, self.errors, self.leveled = old.warnings, old.errors, old.leveled
        self.first_number, self._seen_total = old.first_number, old._seen_total

    # requests ------------------------------------------------------------------------------------------

    def due(self, is_live: bool) -> Params | None:
        """The parameters of the request to send now, which is then in flight; None if there is none."""
        if (params := self._due(is_live)) is None:
            return None
        common = {"run": self.run, "path": self.path, "level": self.level, "pattern": self.pattern}
        extent = {"before": LOADED, "after": LOADED} if self.target is not None else {}
        params = {**common, **extent, **params}
        self.asking.start(params)
        return params

    def _due(self, is_live: bool) -> Params | None:
        pause = SOON_S if is_live or self.counted < 1 or self.leveled < 1 else LIVE_S
        if not self.asking.is_due(pause if self._is_dry and self.target is None else 0.0):
            return None
        if self.target is not None:
            return self.target
        below, above = len(self.lines) - 1 - self.cursor, self.cursor
        if not self.is_last and (below < MARGIN or self._owed > 0):
            return {"at": self.end, "before": 0, "after": LOADED}
        if not self.is_first and (above < MARGIN or self._owed < 0):
            return {"at": self.lines[0].offset if self.lines else self.end, "before": LOADED, "after": 0}
        if not self.asking.is_due(pause):
            return None
        return {"at": self.end, "before": 0, "after": LOADED if self.is_last and below < KEPT // 2 else 0}

    def answer(self, params: Params, reply: Mapping[str, Any]) -> None:
        """Take the reply to a request, unless another place was asked for meanwhile."""
        if not self.asking.end(params):
            return
        if self.is_answered and (reply["file"] != self.file or reply["size"] < self.end):
            self._replaced(reply)
            return
        target, self.target = self.target, None
        rows = reply["lines"]
        lines = [ShownLine.from_row(row, self.end) for row in rows]
        self._is_dry = target is None and not lines
        before = (len(self.lines), self.cursor, self.size, self.total, self.counted, self.leveled, self.is_last)
        if target is not None:
            self._take(lines, reply)
        elif params["before"]:
            self._prepend(lines, reply)
        else:
            self._append(lines, reply, params["after"])
        self.file, self.size, self.total = reply["file"], reply["size"], reply["total"]
        self.counted, self.leveled = reply["counted"], reply["leveled"]
        self.warnings, self.errors = reply["warnings"], reply["errors"]
        self.is_answered = True
        if self._seen_total is None and not self.follows and self.is_exact:
            self._seen_total = self.total
        if self._line is not None and self.counted >= 1 and target is None:
            self.go({"line": self._line})  # it was an estimate
            self._line = None
        if target is not None or lines or before != (
            len(self.lines), self.cursor, self.size, self.total, self.counted, self.leveled, self.is_last,
        ):  # fmt: skip
            self.version += 1

    def fail(self, params: Params, message: str) -> None:
        """The request failed; it is sent again later."""
        if self.asking.end(params, message):
            self.version += 1

    def _replaced(self, reply: Mapping[str, Any]) -> None:
        self.notice = "the file was replaced or truncated"
        self.lines, self.cursor, self.top, self.end, self.is_answered = [], 0, 0, 0, False
        self._seen_total = None
        self.go({} if self.follows else {"at": 0})

    def _take(self, lines: list[ShownLine], reply: Mapping[str, Any]) -> None:
        self.lines, self.end = lines, reply["end"]
        self.is_first, self.is_last, self.first_number = reply["first"], reply["last"], reply["number"]
        found = next((index for index, line in enumerate(lines) if line.offset >= reply["at"]), len(lines) - 1)
        self.cursor = max(0, len(lines) - 1 if self.follows else found)
        self.top = max(0, self.cursor - MARGIN)
        if self._line is not None and reply["counted"] >= 1:
            self._line = None

    def _prepend(self, lines: list[ShownLine], reply: Mapping[str, Any]) -> None:
        self.lines = [*lines, *self.lines]
        self.cursor += len(lines)
        self.top += len(lines)
        self.is_first, self.first_number = reply["first"], reply["number"] if lines else self.first_number
        if len(self.lines) > KEPT:
            del self.lines[KEPT:]
            self.is_last, self.end = False, self.lines[-1].offset + self.lines[-1].length
        self._pay()

    def _append(self, lines: list[ShownLine], reply: Mapping[str, Any], after: int) -> None:
        if after == 0:  # it asked only for what is known of the whole
            self.is_last = self.is_last and reply["size"] == self.end
            if reply["size"] != self.end and self.lines and self.lines[-1].is_open:
                self.end = self.lines.pop().offset  # there is more of it now
            if self.is_exact is False and not lines:
                self.first_number = self._renumbered(reply)
            return
        if lines:
            while self.lines and self.lines[-1].offset >= lines[0].offset:
                self.lines.pop()  # its end was not written yet
            if not self.lines or self.counted < reply["counted"]:
                self.first_number = reply["number"] - len(self.lines)
            self.lines += lines
        else:
            self.first_number = self._renumbered(reply)
        self.end, self.is_last = reply["end"], reply["last"]
        self.cursor = min(self.cursor, max(0, len(self.lines) - 1))
        if len(self.lines) > KEPT:
            dropped = len(self.lines) - KEPT
            del self.lines[:dropped]
            self.cursor, self.top = max(0, self.cursor - dropped), max(0, self.top - dropped)
            self.first_number, self.is_first = self.first_number + dropped, False
        if self.follows:
            self.cursor = max(0, len(self.lines) - 1)
            if not self.is_last:
                self.target = {}  # more is written than is read: what is between is passed over
        self._pay()

    def _renumbered(self, reply: Mapping[str, Any]) -> int:
        """The number of the first line, from that of the place behind the last one."""
        if self.level or reply["counted"] <= self.counted:
            return self.first_number
        is_open = bool(self.lines) and self.lines[-1].is_open
        return max(1, int(reply["number"]) - len(self.lines) + is_open)

    def _pay(self) -> None:
        """Move on by what keys asked for before the lines were known."""
        if self._owed:
            owed, self._owed = self._owed, 0
            self.move(owed)
