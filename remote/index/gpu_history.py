"""What the GPUs did in a range of time, from the end of a run's ``gpu.jsonl``, of which no more is read."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from pathlib import Path
from typing import Any

from remote.agent.log_file import open_log, resolve_log
from remote.index.lines import MISSING, number, read_line, time_of
from remote.index.log_index import Source
from remote.index.log_scan import line_start
from remote.protocol.host import NO_VALUE, GpuHistoryRequest
from remote.protocol.packed import pack

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
    source = Source(descriptor, path)
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


def _summed(source: Source, request: GpuHistoryRequest) -> dict[int, dict[int, list[float]]]:
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


def _first_line(source: Source, low: float) -> int:
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
