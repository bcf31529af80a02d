"""Answers about ``rollouts.jsonl``: its steps, their samples, their texts, and searches."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from remote.index.log_index import Source
from remote.index.query import Candidate, compiled
from remote.index.reading import Lines, Unindexed, full_row, prompts, sample_row
from remote.index.rollouts import COLUMNS, RolloutIndex, Sample, Segment, segments_of
from remote.protocol import RemoteError
from remote.protocol.index import (
    MAX_STEPS,
    UNREADABLE,
    RolloutStepRequest,
    RolloutStepsRequest,
    SamplesRequest,
    SearchRolloutsRequest,
)
from remote.protocol.packed import pack

TAIL = 4 << 20
"""Bytes at the end whose steps are known before the index is whole."""
SEARCH_ROWS = 4_096
"""Rows that are loaded at once for a search."""
MAX_TEXTS = 1 << 20
"""Characters of all prompts, and of all completions, of one reply."""
MAX_SAMPLES = 10_000
"""Of one step; the first ones."""


def rollout_steps(index: RolloutIndex, source: Source | None, request: RolloutStepsRequest) -> dict[str, Any]:
    """The reply to a ``rollout_steps`` request."""
    segments = index.segments() if source else []
    if source and not index.whole:
        known = {segment.step for segment in segments}
        segments += [segment for segment in _of_tail(index, source) if segment.step not in known]
    steps: dict[int, list[Segment]] = {}
    for segment in segments:
        steps.setdefault(segment.step, []).append(segment)
    order = sorted(steps)
    low = order[0] if order and request.low is None else request.low or 0
    shown = [step for step in order if step >= low and (request.high is None or step <= request.high)][-MAX_STEPS:]
    rows = []
    for step in shown:
        parts = steps[step]
        scored = sum(part.scored for part in parts)
        reward = sum(part.reward for part in parts) / scored if scored else 0.0
        counts = (sum(part.samples for part in parts), scored, reward)
        rows.append((step, *counts, sum(part.groups for part in parts), sum(part.signal for part in parts)))
    return {
        **_common(index, source),
        "first_step": order[0] if order else None,
        "last_step": order[-1] if order else None,
        "total": len(order),
        "length": len(rows),
        "table": pack([array("d", column) for column in zip(*rows, strict=True)]) if rows else pack([]),
    }


def _of_tail(index: RolloutIndex, source: Source) -> list[Segment]:
    """The segments of the file's last bytes but for the first, which may have begun before."""
    start = max(index.offset, source.size - TAIL)
    samples = Unindexed(source, index.ranges).samples(start)
    columns = list(zip(*samples, strict=True)) or [()] * len(COLUMNS)
    return segments_of(0, columns[1], columns[2], columns[4], columns[7])[0 if start == index.offset else 1 :]


def rollout_step(index: RolloutIndex, source: Source | None, request: RolloutStepRequest) -> dict[str, Any]:
    """The reply to a ``rollout_step`` request: the last step with samples that is not after the one asked for, else the
    first one."""
    if source is not None:
        found = _indexed_step(index, request.step) if index.whole else _unindexed_step(index, source, request.step)
        if found is not None:
            step, before, after, samples, reasons = found
            count, samples = len(samples), samples[:MAX_SAMPLES]
            return {
                **_common(index, source),
                "step": step,
                "count": count,
                "samples": [sample_row(sample, reasons) for sample in samples],
                "groups": prompts(samples, Lines(source)),
                "previous": before,
                "next": after,
            }
    raise RemoteError("no_step", f"{request.run} has not logged a completion yet")


Found = tuple[int, "int | None", "int | None", list[Sample], list[str]]


def _indexed_step(index: RolloutIndex, wanted: int) -> Found | None:
    of_segments, firsts = index.segment_column("step"), index.segment_column("first")
    steps = sorted(set(of_segments))
    if not steps:
        return None
    place = max(0, bisect_left(steps, wanted + 1) - 1)
    step = steps[place]
    samples: list[Sample] = []
    for found, first, end in zip(of_segments, firsts, [*firsts[1:], index.rows], strict=True):
        if found == step:
            samples += index.samples(first, end)
    before, after = steps[place - 1] if place else None, steps[place + 1] if place + 1 < len(steps) else None
    return step, before, after, samples, index.header["reasons"]


def _unindexed_step(index: RolloutIndex, source: Source, wanted: int) -> Found | None:
    rows = Unindexed(source, index.ranges)
    found = rows.step(wanted)
    if found is None:
        return None
    step, after, samples, reasons = found
    return step, rows.step_before(step), after, samples, reasons


def samples(index: RolloutIndex, source: Source | None, request: SamplesRequest) -> dict[str, Any]:
    """The reply to a ``samples`` request."""
    rows = []
    characters = min(request.characters, MAX_TEXTS // max(1, len(request.offsets)))
    for offset in request.offsets:
        try:
            if source is None or (offset and os.pread(source.descriptor, 1, offset - 1) != b"\n"):
                raise ValueError("no line begins here")
            rows.append(full_row(offset, Lines(source).at(offset), characters))
        except ValueError as error:
            rows.append({"offset": offset, UNREADABLE: str(error)})
    return {"samples": rows}


def search(
    index: RolloutIndex, source: Source | None, request: SearchRolloutsRequest, goes_on: Callable[[], bool]
) -> dict[str, Any]:
    """The reply to a ``search_rollouts`` request: the newest samples first, as many as are examined while
    ``goes_on()``."""
    condition = compiled(request.where)
    matches: list[dict[str, Any]] = []
    searched, following = 1.0, None
    if source is not None:
        found = _unindexed_rows if request.step is not None and not index.whole else _indexed_rows
        total, left, rows, reasons = found(index, source, request)
        for sample, line in rows:
            reason = sample[8]
            one = Candidate(sample, reasons[reason - 2] if reason > 1 else None, line)
            left -= 1
            if condition(one):
                excerpt = {"excerpt": one.excerpt} if one.excerpt else {}
                matches.append({**sample_row(sample, reasons), **excerpt})
            if left and (len(matches) >= request.limit or not goes_on()):
                following = sample[0]
                break
        searched = 1 - left / total if total else 1.0
    return {**_common(index, source), "matches": matches, "searched": searched, "next": following}


Rows = Iterator[tuple[Sample, Callable[[], "bytes | None"]]]
"""Samples, the last one first, and how to read the line of each."""


def _indexed_rows(
    index: RolloutIndex, source: Source, request: SearchRolloutsRequest
) -> tuple[int, int, Rows, list[str]]:
    """What a search examines: how many samples in all, on this page and the next ones, these, and their reasons."""
    spans = [(0, index.rows)] if index.rows else []
    if request.step is not None:
        parts = [segment for segment in index.segments() if segment.step == request.step]
        spans = [(part.first, part.first + part.samples) for part in parts]
    end = index.rows
    if request.before is not None:
        end = bisect_left(index.read("samples", "offset", 0, index.rows), request.before)
    total = sum(last - first for first, last in spans)
    left = sum(max(0, min(last, end) - first) for first, last in spans)
    return total, left, _backwards(index, source, spans, end), index.header["reasons"]


def _unindexed_rows(
    index: RolloutIndex, source: Source, request: SearchRolloutsRequest
) -> tuple[int, int, Rows, list[str]]:
    """The same for a step of a file that is not indexed to its end."""
    assert request.step is not None
    found = _unindexed_step(index, source, request.step)
    if found is None or found[0] != request.step:
        return 0, 0, iter(()), []
    rows = [row for row in found[3] if request.before is None or row[0] < request.before]
    lines = Lines(source)
    pairs = ((row, partial(lines.at, row[0], backwards=True)) for row in reversed(rows))
    return len(found[3]), len(rows), pairs, found[4]


def _backwards(index: RolloutIndex, source: Source, spans: list[tuple[int, int]], end: int) -> Rows:
    """Samples before a row, the last one first, and how to read the line of each."""
    lines = Lines(source)
    for first, last in reversed(spans):
        last = min(last, end)
        while last > first:
            start = max(first, last - SEARCH_ROWS)
            for sample in reversed(index.samples(start, last)):
                yield sample, partial(lines.at, sample[0], backwards=True)
            last = start


def _common(index: RolloutIndex, source: Source | None) -> dict[str, Any]:
    return {
        "state": "whole" if index.whole else "coarse",
        "progress": 1.0 if index.whole or not index.size else index.offset / index.size,
        "rows": index.rows if source else 0,
        "skipped": index.header["skipped"],
        "offset": index.offset,
    }
