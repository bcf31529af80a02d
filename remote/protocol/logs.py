"""Requests and replies about the files of a run, of any size: they are read and searched where they are.

**For the app.** ``log_files`` lists them. ``read_log`` has the lines around a place. What it says about the whole file
(how many lines, warnings, errors) is counted from the end backwards while nobody waits: ``counted`` is the share of
the bytes so far, and below 1 the numbers are estimates or minimums. Ask again to let it go on. ``search_log`` does the
same for a pattern: each request has what is found so far, and the search goes on for about two seconds after the last
request, so to cancel it is to ask no more. ``log_bytes`` has bytes as they are.

``file`` is another value after a file was replaced or truncated: what is known of it is void then.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict

from remote.protocol.index import Offset, Row, Share, Text
from remote.protocol.intake import Rule

MAX_FILES = 2_000
"""Of one ``log_files`` reply."""
MAX_LINES = 1_000
"""Before, and after, the place of one ``read_log`` reply, which has fewer where they are long."""
MAX_CHARACTERS = 64_000
"""Of a line."""
MAX_PATTERN = 1_000
MAX_BYTES = 393_216
"""Of one ``log_bytes`` reply."""
AROUND = 100
"""Matches before the place, and after it, of one ``search_log`` reply."""
MAX_KEPT = 1_000_000
"""The newest matches of a search; older ones are counted only."""
LEVELS = ("", "warning", "error")
"""``""`` = every line."""

Level: TypeAlias = Annotated[str, Rule(f"one of {', '.join(map(repr, LEVELS))}", lambda value: value in LEVELS)]
Lines: TypeAlias = Annotated[int, Rule(f"an integer from 0 to {MAX_LINES}", lambda value: 0 <= value <= MAX_LINES)]
Characters: TypeAlias = Annotated[
    int, Rule(f"an integer from 1 to {MAX_CHARACTERS}", lambda value: 1 <= value <= MAX_CHARACTERS)
]
Pattern: TypeAlias = Annotated[str, Rule(f"at most {MAX_PATTERN} characters", lambda value: len(value) <= MAX_PATTERN)]
SearchedPattern: TypeAlias = Annotated[
    str, Rule(f"1 to {MAX_PATTERN} characters", lambda value: 1 <= len(value) <= MAX_PATTERN)
]
ByteCount: TypeAlias = Annotated[int, Rule(f"an integer from 1 to {MAX_BYTES}", lambda value: 1 <= value <= MAX_BYTES)]
Around: TypeAlias = Annotated[
    list[Offset], Rule(f"a list of at most {2 * AROUND} offsets", lambda value: len(value) <= 2 * AROUND)
]


@dataclass(frozen=True)
class LogFilesRequest:
    """The files under the run's ``logs/`` and its evaluations."""

    run: Text


@dataclass(frozen=True)
class ReadLogRequest:
    """Lines around a place: the line that has the byte ``at``, else the one with the number ``line`` (from 1), else the
    one at the ``share`` of the file's bytes, else its end."""

    run: Text
    path: Text
    """Relative to the root."""
    at: Offset | None = None
    line: Offset | None = None
    share: Share | None = None
    before: Lines = 0
    """Lines before the place …"""
    after: Lines = 100
    """… and from it on."""
    level: Level = ""
    """Only lines of this level."""
    pattern: Pattern = ""
    """A regular expression whose matches are marked."""
    characters: Characters = 2_000
    """Maximum of each line."""


@dataclass(frozen=True)
class SearchLogRequest:
    """A search for a regular expression, line by line. Without a capital letter, it matches both cases."""

    run: Text
    path: Text
    pattern: SearchedPattern
    at: Offset = 0
    """The place whose neighbors are asked for."""
    level: Level = ""


@dataclass(frozen=True)
class LogBytesRequest:
    run: Text
    path: Text
    at: Offset = 0
    count: ByteCount = MAX_BYTES


class LogFilesReply(TypedDict):
    run: str
    files: list[Row]
    """LogFile, those of ``logs/`` first."""
    left_off: Offset
    """Files that the list has no room for."""


class _File(TypedDict):
    """What every reply about a file says."""

    run: str
    path: str
    file: Annotated[str, Rule("at most 64 characters", lambda value: len(value) <= 64)]
    size: Offset


class ReadLogReply(_File):
    lines: list[Row]
    """LogLine, in order."""
    at: Offset
    """Where the line begins that was asked for; the file's size for its end."""
    number: Offset
    """Number of the first one of ``lines``, from 1; an estimate while ``counted`` is below 1."""
    total: Offset
    """Lines of the file; an estimate while ``counted`` is below 1."""
    counted: Share
    warnings: Offset
    """At least so many while ``leveled`` is below 1."""
    errors: Offset
    leveled: Share
    """Of the bytes, where warnings and errors were counted."""
    first: bool
    """Whether nothing comes before ``lines`` …"""
    last: bool
    """… or after."""
    end: Offset
    """Where the lines after these begin; a line without its end is read again."""


class SearchLogReply(_File):
    total: Offset
    """Matching lines so far."""
    searched: Share
    around: Around
    """Where the matching lines around the place begin, in order."""
    before: Offset
    """Matching lines before ``around`` …"""
    after: Offset
    """… and after, so far."""
    kept: bool
    """Whether all are known by place: see MAX_KEPT."""


class LogBytesReply(_File):
    at: Offset
    data: str
    """Base64; unpacked, bytes."""


class _LogFile(TypedDict):
    path: str


class LogFile(_LogFile, total=False):
    """A file of a run."""

    name: str
    """Below its group."""
    group: str
    """``logs``, or the name of an evaluation."""
    size: Offset
    modified: Annotated[float, Rule("a number within ±10^15", lambda value: abs(value) <= 1e15)]
    """Seconds since the epoch on the box's clock."""


class _LogLine(TypedDict):
    offset: Offset


class LogLine(_LogLine, total=False):
    """A line of a log."""

    length: Offset
    """Bytes, with its end."""
    text: str
    """Its first characters, as a terminal shows them."""
    cut: bool
    """Whether there are more."""
    open: bool
    """Whether its end is not written yet."""
    level: Level
    marks: Annotated[list[list[int]], Rule("at most 1,000 pairs", lambda value: len(value) <= 1_000)]
    """First and last character, not included, of each match of the pattern."""


def unpack_bytes(reply: Row) -> Row:
    """The reply with its bytes. Raises ValueError for damaged ones."""
    try:
        return {**reply, "data": base64.b64decode(reply["data"], validate=True)}
    except binascii.Error as error:
        raise ValueError(f"'data' is damaged: {error}") from None
