"""Answers about the files of a run: which there are, their lines, searches, levels, and what the GPUs did."""

from __future__ import annotations

import base64
import os
import sys
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from grpo_train.run_dir import list_evaluations
from grpo_train.run_dir.clock import Clock
from remote.agent.follow import open_log, resolve_log
from remote.index.lines import MISSING, number, read_line, time_of
from remote.index.log_index import OpenLog
from remote.index.log_scan import LineCount, LineReader, Matches, Scan, line_start
from remote.index.patterns import Levels, Pattern, levels_of
from remote.protocol import RemoteError
from remote.protocol.box import NO_VALUE, GpuHistoryRequest
from remote.protocol.frames import pack
from remote.protocol.logs import (
    AROUND,
    MAX_FILES,
    LogBytesRequest,
    LogFilesRequest,
    ReadLogRequest,
    SearchLogRequest,
)

CHUNK = 1 << 18
MAX_BYTES = 32 << 20
"""Of the file's end that are read; that is a week of eight GPUs."""
MAX_GPUS = 64
FIELDS = ("utilization_percent", "memory_used_mib", "power_w", "temperature_c")


def gpu_history(root: Path, run: Path, follow_links: bool, request: GpuHistoryRequest, goes_on: Any) -> dict[str, Any]:
    """The reply to a ``gpu_history`` request; a run without the file has none."""
    path = f"training_runs/{run.name}/logs/gpu.jsonl"
    try:
        descriptor = open_log(resolve_log(root, path), root, follow_links)
    except (FileNotFoundError, NotADirectoryError):
        return {"run": request.run, "histories": []}
    source = OpenLog(descriptor, path)
    try:
        sums = _summed(source, request)
    finally:
        source.close()
    rows = []
    for index in sorted(sums)[:MAX_GPUS]:
        columns = [sums[index][column] for column in sorted(sums[index])]
        table = [array("d", [column[0] for column in columns])]
        for place in range(len(FIELDS)):
            values = [(one[1 + 2 * place], one[2 + 2 * place]) for one in columns]
            table.append(array("d", [total / count if count else NO_VALUE for total, count in values]))
        rows.append({"index": index, "length": len(columns), "columns": pack(table)})
    return {"run": request.run, "histories": rows}


def _summed(source: OpenLog, request: GpuHistoryRequest) -> dict[int, dict[int, list[float]]]:
    """GPU → column → time of the last sample, then sum and count of each field."""
    found: dict[int, dict[int, list[float]]] = {}
    span = max(1e-9, request.high - request.low)
    begin = _first_line(source, request.low)
    while begin < source.size:
        data = os.pread(source.descriptor, CHUNK, begin)
        end = data.rfind(b"\n") + 1
        if not end:
            break
        begin += end
        for line in data[:end].split(b"\n"):
            row = read_line(line) if line else None
            at = time_of(row) if row is not None else MISSING
            index = number(row.get("index")) if row is not None else MISSING
            if row is None or not request.low <= at <= request.high or not 0 <= index < 1e6:
                continue
            column = min(request.columns - 1, int((at - request.low) / span * request.columns))
            sums = found.setdefault(int(index), {}).setdefault(column, [0.0] * (1 + 2 * len(FIELDS)))
            sums[0] = max(sums[0], at)
            for place, field in enumerate(FIELDS):
                value = number(row.get(field))
                if 0 <= value <= 1e9:
                    sums[1 + 2 * place] += value
                    sums[2 + 2 * place] += 1
    return found


def _first_line(source: OpenLog, low: float) -> int:
    """Where a line begins that is not after the first one of a time or later; times rise."""
    first = max(0, source.size - MAX_BYTES)
    blocks = range(first, source.size, CHUNK)

    def time_at(place: int) -> float:
        begin = line_start(source, place)
        row = read_line(os.pread(source.descriptor, 1 << 14, begin).partition(b"\n")[0])
        at = time_of(row) if row is not None else MISSING
        return low - 1 if at == MISSING else at

    place = bisect_left(blocks, low, key=time_at) - 1
    return line_start(source, blocks[place]) if place > 0 else line_start(source, first)


GOES_ON_S = 2.0
"""A scan goes on for this long after the last request for it."""
MAX_SCANS = 48
FIRST = ("console.log", "train_log.jsonl", "rollouts.jsonl", "events.jsonl")
Goes = Callable[[], bool]
Kind = TypeVar("Kind", bound=Scan)


class LogAnswers:
    """The scans of this process, and what is asked about files."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scans: OrderedDict[tuple[object, ...], Scan] = OrderedDict()
        self._wanted: dict[tuple[object, ...], tuple[float, Callable[[], OpenLog]]] = {}
        """Scans in progress: when each was last asked for, and how its file is opened."""
        self.handlers: dict[str, Callable[[Path, Path, bool, Any, Goes], dict[str, Any]]] = {
            "log_files": log_files,
            "read_log": self._read,
            "search_log": self._search,
            "log_bytes": self._bytes,
            "gpu_history": gpu_history,
        }

    @property
    def is_busy(self) -> bool:
        """Whether a scan that somebody waits for is in progress."""
        now = self._clock.monotonic()
        self._wanted = {key: value for key, value in self._wanted.items() if now - value[0] < GOES_ON_S}
        return bool(self._wanted)

    def work(self, goes_on: Goes) -> None:
        """Go on with the scan that was asked for last."""
        key = max(self._wanted, key=lambda known: self._wanted[known][0])
        try:
            with closing(self._wanted[key][1]()) as source:
                scan = self._scans.get(key)
                if scan is not None and scan.fits(source):
                    scan.advance(source, goes_on)
                if scan is None or scan.share >= 1:
                    del self._wanted[key]
        except (RemoteError, OSError) as error:
            print(f"logs: {error}", file=sys.stderr)
            del self._wanted[key]

    def _scan(self, key: tuple[object, ...], make: Callable[[], Kind], opened: _Opened, goes_on: Goes) -> Kind:
        """A scan of a file, as far as it is by now."""
        source = opened.source
        key = (source.device, source.inode, *key)
        scan = self._scans.get(key)
        if scan is None or not scan.fits(source):
            scan = self._scans[key] = make()
            self._wanted.pop(key, None)
        self._scans.move_to_end(key)
        while len(self._scans) > MAX_SCANS:
            self._scans.popitem(last=False)
        if scan.share < 1 or scan.size != source.size:
            scan.advance(source, goes_on)
        if scan.share < 1:
            self._wanted[key] = self._clock.monotonic(), opened.again
        return scan  # type: ignore[return-value]  # the key says which kind it is

    def _matches(self, find: str | Pattern, level: str, levels: Levels, opened: _Opened, goes_on: Goes) -> Matches:
        """The lines of a level, or those of them that match a pattern."""
        pattern = levels.patterns[level] if isinstance(find, str) else find
        name = "" if isinstance(find, str) else find.source

        def lines(block: bytes) -> list[tuple[int, int]]:
            found = pattern.lines(block)
            return [span for span in found if not level or levels.of(block[span[0] : span[1]]) == level]

        return self._scan((level, name), lambda: Matches(lines), opened, goes_on)

    def _read(self, root: Path, run: Path, follow_links: bool, request: ReadLogRequest, goes_on: Goes) -> Any:
        with _opened(root, follow_links, request.path) as opened:
            source, levels = opened.source, levels_of(request.path)
            # while nobody waits, the last one goes on first: the level that is shown, else the lines, the shortest
            order = sorted(("warning", "error"), key=lambda level: level == request.level)
            found: dict[str, Matches] = {}
            found[order[0]] = self._matches(order[0], order[0], levels, opened, goes_on)
            if not request.level:
                found[order[1]] = self._matches(order[1], order[1], levels, opened, goes_on)
            count = self._scan(("lines",), LineCount, opened, goes_on)
            if request.level:
                found[order[1]] = self._matches(order[1], order[1], levels, opened, goes_on)
            pattern = Pattern(request.pattern) if request.pattern else None
            reader = LineReader(source, levels, pattern, request.characters)
            at = _place(source, count, request)
            if request.level:
                lines, end, first, last = reader.of_level(found[request.level], at, request.before, request.after)
            else:
                lines, end, first, last = reader.around(at, request.before, request.after)
            place = lines[0]["offset"] if lines else at
            return {
                **_about(request, source),
                "lines": lines,
                "at": at,
                "number": count.number(source, place),
                "total": count.total(source),
                "counted": count.share,
                "warnings": found["warning"].total,
                "errors": found["error"].total,
                "leveled": min(scan.share for scan in found.values()),
                "first": first,
                "last": last,
                "end": end,
            }

    def _search(self, root: Path, run: Path, follow_links: bool, request: SearchLogRequest, goes_on: Goes) -> Any:
        with _opened(root, follow_links, request.path) as opened:
            find = Pattern(request.pattern)
            scan = self._matches(find, request.level, levels_of(request.path), opened, goes_on)
            index = scan.index(request.at)
            around = scan.between(index - AROUND, index + AROUND)
            newer = scan.total - scan.index(around[-1] + 1) - scan.left_off if around else 0
            return {
                **_about(request, opened.source),
                "total": scan.total,
                "searched": scan.share,
                "around": around,
                "before": scan.left_off + max(0, index - AROUND),
                "after": newer,
                "kept": scan.left_off == 0,
            }

    @staticmethod
    def _bytes(root: Path, run: Path, follow_links: bool, request: LogBytesRequest, goes_on: Goes) -> Any:
        with _opened(root, follow_links, request.path) as opened:
            data = os.pread(opened.source.descriptor, request.count, request.at)
            return {
                **_about(request, opened.source), "at": request.at, "data": base64.b64encode(data).decode(),
            }  # fmt: skip


class _Opened:
    """An opened file, and how it is opened again."""

    def __init__(self, root: Path, follow_links: bool, path: str) -> None:
        """Raises RemoteError and OSError."""
        self._arguments = (root, follow_links, path)
        self.source = self.again()

    def again(self) -> OpenLog:
        root, follow_links, path = self._arguments
        return OpenLog(open_log(resolve_log(root, path), root, follow_links), path)


@contextmanager
def _opened(root: Path, follow_links: bool, path: str) -> Iterator[_Opened]:
    try:
        opened = _Opened(root, follow_links, path)
    except FileNotFoundError:
        raise RemoteError("no_file", f"{path} does not exist (any more)") from None
    with closing(opened.source):
        yield opened


def _place(source: OpenLog, count: LineCount, request: ReadLogRequest) -> int:
    """Where the line begins that is asked for; the file's size for its end."""
    if request.at is not None:
        at = request.at
    elif request.line is not None:
        at = count.offset(source, request.line)
    elif request.share is not None:
        at = int(request.share * source.size)
    else:
        at = source.size
    return source.size if at >= source.size else line_start(source, at)


def _about(request: Any, source: OpenLog) -> dict[str, Any]:
    return {
        "run": request.run, "path": request.path, "file": f"{source.device:x}-{source.inode:x}", "size": source.size,
    }  # fmt: skip


def log_files(root: Path, run: Path, follow_links: bool, request: LogFilesRequest, goes_on: Goes) -> dict[str, Any]:
    """The reply to a ``log_files`` request: no file is opened."""
    groups = [("logs", run / "logs")]
    for row in reversed(list_evaluations(root, run.name)):
        groups.append((row["name"], root / "eval_runs" / row["name"]))
    files: list[dict[str, Any]] = []
    for group, folder in groups:
        found = []
        for place, folders, names in os.walk(folder):
            folders.sort()
            found += [_file(root, group, folder, Path(place, name)) for name in names if not name.startswith(".")]
        known = [one for one in found if one is not None]
        files += sorted(known, key=lambda one: (_rank(one["name"]), one["name"]))
        if len(files) > MAX_FILES:
            break
    return {"run": request.run, "files": files[:MAX_FILES], "left_off": max(0, len(files) - MAX_FILES)}


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _file(root: Path, group: str, folder: Path, file: Path) -> dict[str, Any] | None:
    try:
        facts = file.stat()
    except OSError:  # removed just now, or a link to nothing
        return None
    path = file.relative_to(root) if file.is_relative_to(root) else file
    return {
        "path": _text(path), "name": _text(file.relative_to(folder)), "group": group, "size": facts.st_size,
        "modified": facts.st_mtime,
    }  # fmt: skip


def _text(path: Path) -> str:
    return os.fsencode(path).decode(errors="replace")
