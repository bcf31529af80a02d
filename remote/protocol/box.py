"""Requests and replies about the machine (doctor, processor, memory, disks, GPUs, sessions), and the report of runs."""

from __future__ import annotations

import base64
import binascii
import zlib
from dataclasses import field
from typing import Annotated, Any, TypeAlias, TypedDict

from remote.protocol.check import Positive, Row, Text, ValueRule
from remote.protocol.frames import unpack
from remote.protocol.logs import Bound
from remote.protocol.record import record

MAX_COLUMNS = 1_024
GPU_COLUMNS = 5
"""Time, utilization, memory, power and temperature."""
NO_VALUE = -1.0
"""Stands for a value that the driver did not report."""

Columns: TypeAlias = Annotated[
    int, ValueRule(f"an integer from 1 to {MAX_COLUMNS}", lambda value: 1 <= value <= MAX_COLUMNS)
]
Amount: TypeAlias = Annotated[float, ValueRule("a number from 0 to 10^15", lambda value: 0 <= value <= 1e15)]


@record(frozen=True)
class BoxFactsRequest:
    """Processor and memory since the last request, and the disks."""


@record(frozen=True)
class GpuHistoryRequest:
    """The samples of a run's ``gpu.jsonl`` in a range of time, reduced to ``columns`` per GPU."""

    run: Text
    low: Bound
    """Seconds since the epoch on the box's clock."""
    high: Bound
    columns: Columns = 120


class BoxFactsReply(TypedDict):
    cpu_percent: Amount | None
    cpu_count: Amount | None
    memory_used_mib: Amount | None
    memory_total_mib: Amount | None
    uptime_s: Amount | None
    disks: list[Row]
    """DiskRow."""


class GpuHistoryReply(TypedDict):
    run: str
    histories: list[Row]
    """GpuHistoryRow; empty on a box without a GPU."""


class _Disk(TypedDict):
    path: str


class DiskRow(_Disk, total=False):
    """A file system."""

    used: Amount
    """Bytes."""
    total: Amount
    what: str
    """``root``, ``system`` or ``home``."""


class _GpuHistory(TypedDict):
    index: Amount


class GpuHistoryRow(_GpuHistory, total=False):
    """A GPU's samples: one per column that has any, in order of time."""

    length: Annotated[int, ValueRule(f"an integer from 0 to {MAX_COLUMNS}", lambda value: 0 <= value <= MAX_COLUMNS)]
    columns: str
    """Packed; unpacked, GPU_COLUMNS lists. Time is that of a column's last sample, the other values are means."""


def unpack_gpu_history(reply: Row) -> Row:
    """The reply with lists of numbers. Raises ValueError for damaged ones."""
    rows = []
    for row in reply["histories"]:
        if "unreadable" not in row:
            row = {**row, "columns": unpack(row.get("columns", ""), GPU_COLUMNS, row.get("length", 0))}
        rows.append(row)
    return {**reply, "histories": rows}


MAX_RUNS = 12
MAX_PAGE = 32 << 20
"""Bytes of a page."""

Runs: TypeAlias = Annotated[
    list[Annotated[str, ValueRule("a non-empty string", bool)]],
    ValueRule(f"a list of 1 to {MAX_RUNS} run names", lambda value: 1 <= len(value) <= MAX_RUNS),
]
Price: TypeAlias = Annotated[float, ValueRule("a number of 0 or more", lambda value: value >= 0)]


@record(frozen=True)
class ReportRequest:
    """A report of one run, or a comparison of several."""

    runs: Runs
    price: Price | None = None
    """Of the box, in dollars per hour."""


class ReportReply(TypedDict):
    page: str
    """Compressed, in base64; unpacked, bytes."""


def pack_page(page: bytes) -> str:
    return base64.b64encode(zlib.compress(page)).decode()


def unpack_page(reply: dict[str, Any]) -> dict[str, Any]:
    """The reply with its page. Raises ValueError for a damaged one, or one over MAX_PAGE."""
    try:
        stream = zlib.decompressobj()
        page = stream.decompress(base64.b64decode(reply["page"], validate=True), MAX_PAGE)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"'page' is damaged: {error}") from None
    if not stream.eof:
        raise ValueError(f"'page' is cut off, or has more than {MAX_PAGE} bytes")
    return {**reply, "page": page}


@record(frozen=True)
class DoctorRequest:
    """Checks of the box, and of the room for a run of a config where its text is given."""

    config_text: str = ""
    overrides: list[str] = field(default_factory=list)
    """``section.key=value``, over the config's values."""


class DoctorReply(TypedDict):
    checks: list[Row]
    """Check."""
    ok: bool


class ListSessionsReply(TypedDict):
    sessions: list[Row]


@record(frozen=True)
class CapturePaneRequest:
    session: Text
    lines: Positive = 200


class CapturePaneReply(TypedDict):
    session: str
    text: str
