"""Requests and replies about a run's logs, which the box answers from indexes: curves, completions, lines, searches.

Columns travel packed (:mod:`remote.protocol.frames`); ``unpack_series`` and ``unpack_rollout_steps`` unpack them once
their fields have passed the gate.

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
from array import array
from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.check import ConfigValue, Row, Text, ValueRule
from remote.protocol.frames import Cursor, RemoteError, pack, unpack
from remote.protocol.record import record

MAX_METRICS = 64
MAX_WIDTH = 4_096
MAX_CELLS = 32_768
"""Metrics times width of one request, which bounds the agent's memory."""
MAX_STEPS = 10_000
"""Rows of one ``rollout_steps`` reply."""
MAX_OFFSETS = 32
HUGE = 1e300
"""Values from here on count as infinite, as NaN does: they are counted, and left out of the other columns."""
SEARCHED = {
    "numbers": ("step", "group", "sample", "reward", "advantage", "length", "problem"),
    "flags": ("correct", "formatted", "flexible", "truncated", "discarded"),
    "texts": ("reason", "prompt", "completion", "answer", "gold", "task", "text"),
}
"""Fields of a search. Flags are compared with true and false; ``text`` is the prompt and the completion."""
IGNORE_CASE = "(?ai)"
"""Prefix of a pattern that ignores the case of ASCII letters; a plain word after it is searched fast."""
X_AXES = ("step", "tokens", "time", "seconds")
"""``time``: seconds since the epoch; ``seconds``: duration of the steps so far, without the time between two stages."""
UNREADABLE = "unreadable"

Axis: TypeAlias = Annotated[str, ValueRule(f"one of {', '.join(X_AXES)}", lambda value: value in X_AXES)]
Bound: TypeAlias = Annotated[float, ValueRule("a number within ±10^15", lambda value: abs(value) <= 1e15)]
Width: TypeAlias = Annotated[int, ValueRule(f"an integer from 1 to {MAX_WIDTH}", lambda value: 1 <= value <= MAX_WIDTH)]
Names: TypeAlias = Annotated[
    list[str], ValueRule(f"a list of at most {MAX_METRICS} strings", lambda value: len(value) <= MAX_METRICS)
]
Offset: TypeAlias = Annotated[int, ValueRule("an integer from 0 to 2^62", lambda value: 0 <= value <= 2**62)]
Offsets: TypeAlias = Annotated[
    list[Offset], ValueRule(f"a list of at most {MAX_OFFSETS} offsets", lambda value: len(value) <= MAX_OFFSETS)
]
Folder: TypeAlias = Annotated[str, ValueRule("at most 1,000 characters", lambda value: len(value) <= 1_000)]
"""Of an evaluated step, relative to the root: its ``completions.jsonl`` is read; "" = the run's ``rollouts.jsonl``."""
State: TypeAlias = Annotated[str, ValueRule("'whole' or 'coarse'", lambda value: value in ("whole", "coarse"))]
Share: TypeAlias = Annotated[float, ValueRule("a number from 0 to 1", lambda value: 0 <= value <= 1)]
Hash: TypeAlias = Annotated[str, ValueRule("a hash", lambda value: (len(value) <= 64 and value.isalnum()) or not value)]


# --------------------------------------------------------------------------------------------------------- requests


@record(frozen=True)
class SeriesRequest:
    """Metrics of a run, reduced to ``width`` pixel columns."""

    run: Text
    metrics: Names
    """``:step`` and ``:time`` are the step and the time of each row."""
    x: Axis = "step"
    low: Bound | None = None
    """First x of the range; None = the run's first."""
    high: Bound | None = None
    width: Width = 120

    def __post_init__(self) -> None:
        if len(self.metrics) * self.width > MAX_CELLS:
            raise RemoteError("bad_request", f"{len(self.metrics)} metrics of {self.width} columns are too many")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise RemoteError("bad_request", "'low' is above 'high'")


@record(frozen=True)
class MetricsRequest:
    run: Text


@record(frozen=True)
class ShowStepRequest:
    """The row nearest to an x."""

    run: Text
    at: Bound
    x: Axis = "step"
    metrics: Names = field(default_factory=list)
    """Those whose level before the row is wanted."""


@record(frozen=True)
class LevelChangesRequest:
    """Where a metric drops most, or rises most, in a range."""

    run: Text
    metric: Text
    x: Axis = "step"
    low: Bound | None = None
    high: Bound | None = None
    rises: bool = False


@record(frozen=True)
class ProblemChangesRequest:
    """The problems of a step whose reward changed most since they were sampled before."""

    run: Text
    step: int


@record(frozen=True)
class RolloutStepsRequest:
    """The steps in a range that have rollouts; of more than MAX_STEPS, the last ones."""

    run: Text
    low: int | None = None
    high: int | None = None
    folder: Folder = ""


@record(frozen=True)
class RolloutStepRequest:
    run: Text
    step: int
    folder: Folder = ""


@record(frozen=True)
class SamplesRequest:
    run: Text
    offsets: Offsets
    characters: Annotated[int, ValueRule("an integer from 0 to 131,072", lambda value: 0 <= value <= 131_072)] = 32_768
    """Maximum of each text; a longer prompt keeps its end, another text its beginning."""
    folder: Folder = ""


@record(frozen=True)
class SearchRolloutsRequest:
    """A page of the samples that meet a condition, newest first.

    A condition is ``[FIELD, OPERATOR, VALUE]``, ``["and", …]`` or ``["or", …]`` of conditions, or ``["not",
    CONDITION]``; ``["and"]`` meets every sample. Fields: see :data:`SEARCHED`. Operators: ``= != < <= > >=``, for texts
    ``= != ~``, where ``~`` searches for a regular expression.
    """

    run: Text
    where: list[Any]
    step: int | None = None
    """Only this step; None = the whole file."""
    before: Offset | None = None
    """``next`` of the previous page."""
    limit: Annotated[int, ValueRule("an integer from 1 to 1,000", lambda value: 1 <= value <= 1_000)] = 200
    folder: Folder = ""


# ---------------------------------------------------------------------------------------------------------- replies


class CursorFields(TypedDict):
    """A :class:`Cursor`."""

    path: str
    offset: Offset
    head_length: Offset
    head_sha256: Hash
    tail_sha256: Hash
    device: int
    inode: int


class _IndexReply(TypedDict):
    """What every reply about an index says."""

    run: str
    state: State
    """``coarse``: the index is in progress, and this is made from a part of the rows. Ask again."""
    progress: Share
    """Of the file's bytes that are indexed."""
    rows: Offset
    """Rows that the reply is made from."""
    skipped: Offset
    """Lines that could not be read."""
    offset: Offset
    """Rows that begin before it are in the reply, later ones are not."""


class SeriesReply(_IndexReply):
    cursor: CursorFields
    """To follow the log from ``offset`` on; unpacked, a :class:`Cursor`."""
    x: Axis
    first: Bound | None
    """First x of the run; None without a row."""
    last: Bound | None
    low: Bound
    """Range of the columns. Column i begins at ``low + i * (high - low) / width``; the last one ends with ``high``."""
    high: Bound
    width: Width
    series: list[Row]
    """SeriesRow, one per metric of the request, in its order; unpacked, with a :class:`Columns`."""


class MetricsReply(_IndexReply):
    first_step: Bound | None
    last_step: Bound | None
    metrics: list[Row]
    """MetricRow, by name."""


class _ShowStepReply(TypedDict):
    run: str
    state: State
    """``coarse``: the nearest of the rows that are known so far."""
    step: Bound
    x: Bound
    """The x of the row, on the axis of the request."""
    offset: Offset
    row: Row
    """The row as it was logged."""
    previous: Bound | None
    """The x before and the one after."""
    next: Bound | None


class ShowStepReply(_ShowStepReply, total=False):
    seconds: Bound
    """Duration of the steps up to the row."""
    before: dict[str, float]
    """By metric: the median of its last ten values before the row, on the axis of the request."""
    before_step: Bound
    """The step of the first row that these values may come from."""


class LevelChangesReply(TypedDict):
    run: str
    state: State
    levels: list[Row]
    """LevelChangeRow, the largest first."""


class ProblemChangesReply(TypedDict):
    run: str
    state: State
    step: Bound
    """The last step with samples that is not after the one asked for."""
    repeated: list[Row]
    """ProblemChangeRow: the problems of the step that were sampled before, the largest change first, at most five."""


class RolloutStepsReply(_IndexReply):
    first_step: Bound | None
    last_step: Bound | None
    total: Offset
    """Steps of the file that have rollouts."""
    length: Annotated[int, ValueRule(f"an integer from 0 to {MAX_STEPS}", lambda value: 0 <= value <= MAX_STEPS)]
    """Steps in this reply."""
    table: str
    """Packed; unpacked, a :class:`StepTable`."""


class _RolloutStepReply(_IndexReply):
    step: Bound
    samples: list[Row]
    """SampleRow without texts, as they are in the file."""
    groups: list[Row]
    """GroupRow."""
    previous: Bound | None
    """The step with rollouts before, and the one after; None also while they are not known."""
    next: Bound | None


class RolloutStepReply(_RolloutStepReply, total=False):
    count: Offset
    """Samples of the step; of more than ``samples`` has, those are the first ones."""
    conditions: dict[str, ConfigValue]
    """Of an evaluated step: its problems, decoding parameters and grader. Empty where they are not recorded."""


class SamplesReply(TypedDict):
    run: str
    samples: list[Row]
    """SampleRow with texts, in the order of the request; one that cannot be read says so."""


class SearchRolloutsReply(_IndexReply):
    matches: list[Row]
    """SampleRow without texts, with ``excerpt`` where a text was searched."""
    searched: Share
    """Of what is to be searched, with the previous pages."""
    next: Offset | None
    """``before`` of the next page; None at the end."""


# --------------------------------------------------------------------------------------------------------- unpacked


@record(frozen=True)
class Columns:
    """One metric per pixel column, all ``width`` long and finite. Where ``count`` is 0, the other columns but ``gaps``
    mean nothing."""

    min: array[float]
    max: array[float]
    first: array[float]
    last: array[float]
    sum: array[float]
    count: array[float]
    """Finite values."""
    gaps: array[float]
    """NaN and infinite values."""


@record(frozen=True)
class StepTable:
    """Steps with rollouts, in order. What follows ``samples`` leaves out discarded ones."""

    step: array[float]
    samples: array[float]
    scored: array[float]
    """Samples with a reward."""
    reward: array[float]
    """Mean of the scored samples' rewards; 0 without one."""
    groups: array[float]
    signal: array[float]
    """Groups whose rewards differ."""


COLUMNS = len(Columns.__dataclass_fields__)
TABLE_COLUMNS = len(StepTable.__dataclass_fields__)
Admit: TypeAlias = Callable[[Row], Row]


def unpack_series(reply: Row) -> Row:
    """The reply with a Cursor, and Columns in each row; a row whose columns are damaged says so."""
    rows = []
    for row in reply["series"]:
        if UNREADABLE not in row:
            try:
                columns = unpack(row["columns"], COLUMNS, reply["width"])
                if not all(map(_is_ordered, *columns[:4])):
                    raise ValueError("a minimum is above its maximum, or a number is huge")
                row = {**row, "columns": Columns(*columns)}
            except ValueError as error:
                row = {"metric": row["metric"], UNREADABLE: str(error)}
        rows.append(row)
    return {**reply, "cursor": Cursor.from_json(reply["cursor"]), "series": rows}


def pack_series(reply: Row) -> Row:
    """The reply as it was before :func:`unpack_series`."""
    rows = [
        row if UNREADABLE in row else {**row, "columns": pack(list(vars(row["columns"]).values()))}
        for row in reply["series"]
    ]
    return {**reply, "cursor": reply["cursor"].to_json(), "series": rows}


def _is_ordered(low: float, high: float, first: float, last: float) -> bool:
    return -HUGE < low <= first <= high < HUGE and low <= last <= high


def unpack_rollout_steps(reply: Row) -> Row:
    """The reply with a StepTable. Raises ValueError for a damaged one."""
    return {**reply, "table": StepTable(*unpack(reply["table"], TABLE_COLUMNS, reply["length"]))}


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

Level: TypeAlias = Annotated[str, ValueRule(f"one of {', '.join(map(repr, LEVELS))}", lambda value: value in LEVELS)]
Lines: TypeAlias = Annotated[int, ValueRule(f"an integer from 0 to {MAX_LINES}", lambda value: 0 <= value <= MAX_LINES)]
Characters: TypeAlias = Annotated[
    int, ValueRule(f"an integer from 1 to {MAX_CHARACTERS}", lambda value: 1 <= value <= MAX_CHARACTERS)
]
Pattern: TypeAlias = Annotated[
    str, ValueRule(f"at most {MAX_PATTERN} characters", lambda value: len(value) <= MAX_PATTERN)
]
SearchedPattern: TypeAlias = Annotated[
    str, ValueRule(f"1 to {MAX_PATTERN} characters", lambda value: 1 <= len(value) <= MAX_PATTERN)
]
ByteCount: TypeAlias = Annotated[
    int, ValueRule(f"an integer from 1 to {MAX_BYTES}", lambda value: 1 <= value <= MAX_BYTES)
]
Around: TypeAlias = Annotated[
    list[Offset], ValueRule(f"a list of at most {2 * AROUND} offsets", lambda value: len(value) <= 2 * AROUND)
]


@record(frozen=True)
class LogFilesRequest:
    """The files under the run's ``logs/`` and its evaluations."""

    run: Text


@record(frozen=True)
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


@record(frozen=True)
class SearchLogRequest:
    """A search for a regular expression, line by line. Without a capital letter, it matches both cases."""

    run: Text
    path: Text
    pattern: SearchedPattern
    at: Offset = 0
    """The place whose neighbors are asked for."""
    level: Level = ""


@record(frozen=True)
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
    file: Annotated[str, ValueRule("at most 64 characters", lambda value: len(value) <= 64)]
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
    modified: Annotated[float, ValueRule("a number within ±10^15", lambda value: abs(value) <= 1e15)]
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
    marks: Annotated[list[list[int]], ValueRule("at most 1,000 pairs", lambda value: len(value) <= 1_000)]
    """First and last character, not included, of each match of the pattern."""


def unpack_bytes(reply: Row) -> Row:
    """The reply with its bytes. Raises ValueError for damaged ones."""
    try:
        return {**reply, "data": base64.b64decode(reply["data"], validate=True)}
    except binascii.Error as error:
        raise ValueError(f"'data' is damaged: {error}") from None
