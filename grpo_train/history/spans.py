"""When a run ran: spans of time from its events."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_train.run_dir.files import time_of

Span = tuple[float, float]
"""Begin and end in seconds since the epoch, on the box's clock."""
ENDS = frozenset({"stopped", "finished", "crashed", "killed"})
STARTS = frozenset({"launched", "resumed", "restarted", "training", "saved"})
"""Events of a run that runs. Others, such as a backup, are also logged of runs that do not."""


def run_spans(events: Iterable[Mapping[str, Any]], updated_at: Any, run_seconds: float | None) -> list[Span]:
    """The spans in which a run ran, in order.

    From its start and end events; the last span ends with ``updated_at`` if no event ends it. A reboot leaves no event,
    so the lengths are scaled to the ``run_seconds`` that the supervisor measured. Without events: one span.
    """
    found: list[Span] = []
    begin: float | None = None
    last = -math.inf
    for event in events:
        at, kind = time_of(event.get("time")), event.get("event")
        if at is None:
            continue
        if kind in ENDS:
            if begin is not None:
                found.append((begin, max(begin, at)))
            begin = None
        elif kind in STARTS:
            begin = at if begin is None else begin
            last = max(last, at)
    updated = time_of(updated_at)
    if begin is not None:
        found.append((begin, max(begin, last, updated if updated is not None else begin)))
    if run_seconds is None:
        return found
    if not found:
        return [(updated - run_seconds, updated)] if updated is not None and run_seconds > 0 else []
    total = sum(end - start for start, end in found)
    if total <= 0:
        return [(found[-1][1] - run_seconds, found[-1][1])] if run_seconds > 0 else []
    scale = run_seconds / total
    return [(end - (end - start) * scale, end) for start, end in found]


def joined(spans: Iterable[Span]) -> list[Span]:
    """The union of spans, in order, without overlaps."""
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def clipped(spans: Iterable[Span], low: float, high: float) -> list[Span]:
    """The parts of spans between two times."""
    inside = ((max(start, low), min(end, high)) for start, end in spans)
    return [(start, end) for start, end in inside if start < end]


def remove_spans(spans: Iterable[Span], others: Sequence[Span]) -> list[Span]:
    """The parts of spans that none of the ``others`` (joined) covers."""
    found = []
    for start, end in joined(spans):
        for low, high in others:
            if high <= start or low >= end:
                continue
            if low > start:
                found.append((start, low))
            start = max(start, high)
        if start < end:
            found.append((start, end))
    return found


def seconds(spans: Iterable[Span]) -> float:
    """Length of all spans together."""
    return sum(end - start for start, end in spans)
