"""Processor, memory and disks of the machine. Read on request only, so that it costs nothing while nobody looks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from grpo_train.run_dir.clock import Clock
from remote.agent.context import BoxContext
from remote.protocol.host import BoxFactsReply, BoxFactsRequest

FIRST_S = 0.1
"""Between the two looks at the processor of a first request …"""
OLD_S = 60.0
"""… and of one that comes this long after the last."""
_PROC = Path("/proc")
_last: tuple[float, int, int] | None = None
"""When the processor was looked at last, and its busy and whole time in ticks."""


def box_facts(box: BoxContext, request: BoxFactsRequest) -> BoxFactsReply:
    """What can be read; the rest is None (macOS has no /proc)."""
    used, total = _memory()
    return {
        "cpu_percent": _cpu_percent(box.clock),
        "cpu_count": os.cpu_count(),
        "memory_used_mib": used,
        "memory_total_mib": total,
        "uptime_s": _uptime(),
        "disks": _disks(box),
    }


def _cpu_percent(clock: Clock) -> float | None:
    """Share of all processors that was busy since the last request."""
    global _last
    try:
        if _last is None or clock.monotonic() - _last[0] > OLD_S:
            _last = _ticks(clock)
            clock.sleep(FIRST_S)
        now, before = _ticks(clock), _last
    except (OSError, ValueError):
        return None
    whole = now[2] - before[2]
    if whole <= 0:
        return None
    _last = now
    return min(100.0, max(0.0, 100.0 * (now[1] - before[1]) / whole))


def _ticks(clock: Clock) -> tuple[float, int, int]:
    values = [int(text) for text in (_PROC / "stat").read_text().partition("\n")[0].split()[1:9]]
    return clock.monotonic(), sum(values) - values[3] - values[4], sum(values)  # without idle and waiting for a disk


def _memory() -> tuple[float | None, float | None]:
    """Used and whole memory in MiB; caches are not used."""
    try:
        rows = dict(line.split(":", 1) for line in (_PROC / "meminfo").read_text().splitlines())
        total, free = (float(rows[name].split()[0]) / 1024 for name in ("MemTotal", "MemAvailable"))
    except (OSError, ValueError, KeyError):
        return None, None
    return max(0.0, total - free), total


def _uptime() -> float | None:
    try:
        return float((_PROC / "uptime").read_text().split()[0])
    except (OSError, ValueError):
        return None


def _disks(box: BoxContext) -> list[dict[str, Any]]:
    """The file systems of the root, of / and of the home directory, each once."""
    found: dict[int, dict[str, Any]] = {}
    for what, place in (("root", box.root), ("system", Path("/")), ("home", Path.home())):
        folder = next(path for path in (place, *place.parents) if path.exists())
        try:
            device, usage = os.stat(folder).st_dev, shutil.disk_usage(folder)
        except OSError:
            continue
        row = {"path": str(place), "what": what, "used": usage.total - usage.free, "total": usage.total}
        found.setdefault(device, row)
    return list(found.values())
