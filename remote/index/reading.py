"""Reading samples of ``rollouts.jsonl`` where they are: by offset, and by step before the index is whole."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from remote.index.completions import read_completion
from remote.index.lines import MAX_LINE, number, shown
from remote.index.log_index import Ranges, Source, range_end
from remote.index.rollouts import FLAGS, Reasons, Sample, read_sample

CHUNK = 1 << 16
BLOCK = 1 << 20
PROMPT = 200
"""Characters of a group's prompt."""
LONGEST_PROMPT = 20_000
"""Characters, the last ones, that are compared with the other prompts."""
TEMPLATE = 24
"""Characters that all prompts of a step share from which they are left out."""
MAX_REWARDS = 64
MAX_FACTS = 20_000
"""Characters; longer ones are left out."""
SHORT = 2_000
"""Characters of an answer."""


class Lines:
    """Lines at offsets, read in blocks of which the last one is kept."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._start, self._data = 0, b""

    def at(self, offset: int, *, backwards: bool = False) -> bytes | None:
        """The line that begins at an offset; None if it has no end within MAX_LINE. ``backwards``: earlier lines are
        read next."""
        begin = offset - self._start
        end = self._data.find(b"\n", begin) if 0 <= begin < len(self._data) else -1
        if end < 0:
            self._start = max(0, offset + CHUNK - BLOCK) if backwards else offset
            self._data = os.pread(self._source.descriptor, offset - self._start + CHUNK, self._start)
            begin = offset - self._start
            end = self._data.find(b"\n", begin)
            if end < 0:
                self._data = os.pread(self._source.descriptor, offset - self._start + MAX_LINE + 1, self._start)
                end = self._data.find(b"\n", begin)
        return self._data[begin:end] if end >= 0 else None


def full_row(offset: int, line: bytes | None, characters: int) -> dict[str, Any]:
    """A sample with its texts, each of at most so many characters. Raises ValueError."""
    reasons = Reasons([])
    row = read_completion(line) if line is not None else None
    sample = read_sample(offset, line or b"", reasons)
    if row is None or sample is None:
        raise ValueError("the line cannot be read")
    found = {"offset": offset, **sample_row(sample, reasons.list)}
    for name in ("prompt", "completion"):
        text = row.get(name)
        if isinstance(text, str):
            found[f"{name}_length"] = len(text)
            found[name] = text[max(0, len(text) - characters) :] if name == "prompt" else text[:characters]
    for name in ("answer", "gold", "role", "reason", "task", "time"):
        value = row.get(name)
        is_text = isinstance(value, str) or (value is not None and name != "reason")
        found[name] = str(value)[:SHORT] if is_text else None
    rewards = row.get("rewards")
    if isinstance(rewards, dict):
        found["rewards"] = {name: shown(number(value)) for name, value in list(rewards.items())[:MAX_REWARDS]}
    if isinstance(row.get("facts"), dict) and len(json.dumps(row["facts"])) <= MAX_FACTS:
        found["facts"] = row["facts"]
    return found


def sample_row(sample: Sample, reasons: list[str]) -> dict[str, Any]:
    """A row of the columns as a reply has it."""
    offset, step, group, place, reward, advantage, length, bits, reason = sample
    row: dict[str, Any] = {"offset": offset, "step": step, "reward": shown(reward), "advantage": shown(advantage)}
    for key, value in (("group", group), ("sample", place), ("length", length)):
        row[key] = None if value < 0 else value
    for at, flag in enumerate(FLAGS):
        row[flag] = (None, False, True, None)[bits >> 2 * at & 3]
    row["reason"] = reasons[reason - 2] if reason > 1 else None
    return row


def prompts(samples: list[Sample], lines: Lines) -> list[dict[str, Any]]:
    """Each group with the part of its prompt that tells it from the others."""
    found: dict[int, str] = {}
    for offset, _, group, *_ in samples:
        if group >= 0 and group not in found:
            row = read_completion(lines.at(offset) or b"")
            text = row.get("prompt") if row else None
            found[group] = text[-LONGEST_PROMPT:] if isinstance(text, str) else ""
    texts = [text for text in found.values() if text]
    start = _shared(texts)
    end = _shared([text[start:][::-1] for text in texts])
    return [
        {"group": group, "prompt": text[start : len(text) - end][:PROMPT] if start or end else text[-PROMPT:]}
        for group, text in found.items()
    ]


def _shared(texts: list[str]) -> int:
    """Characters at the beginning of all texts that belong to their template: whole words, and not few; else 0."""
    if len(set(texts)) < 2:
        return 0
    low, high = min(texts), max(texts)  # what these two share, all share
    place = next((i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b), len(low))
    place = max((low.rfind(space, 0, place) + 1 for space in " \n"), default=0)
    return place if place >= TEMPLATE else 0


class Unindexed:
    """Samples of a file whose steps rise, found by bisection."""

    def __init__(self, source: Source, ranges: Ranges) -> None:
        self._source, self._ranges = source, ranges

    def step(self, wanted: int) -> tuple[int, int | None, list[Sample], list[str]] | None:
        """The last step with samples that is not after the one wanted, else the first one: the step, the next one, its
        samples, and reasons. None without a sample."""
        after = self._first(wanted + 1)
        before = self._last_before(after)
        step = before if before is not None else self._step_at(after)
        if step is None:
            return None
        reasons, samples, following = Reasons([]), [], None
        for offset, line in self._lines(self._first(step)):
            sample = read_sample(offset, line, reasons)
            if sample is not None and sample[1] != step:
                following = sample[1]
                break
            if sample is not None:
                samples.append(sample)
        return step, following, samples, reasons.list

    def step_before(self, step: int) -> int | None:
        """The step with samples before one that has some."""
        return self._last_before(self._first(step))

    def samples(self, start: int) -> list[Sample]:
        """The samples from the first line on that begins at an offset or after it."""
        reasons = Reasons([])
        found = (read_sample(offset, line, reasons) for offset, line in self._lines(self._line_start(start)))
        return [sample for sample in found if sample is not None]

    def _first(self, step: int) -> int:
        """The offset of the first row of a step or a later one; the file's size if there is none."""
        low, high = 0, self._source.size
        while low < high:
            middle = (low + high) // 2
            found = self._row_from(middle, high)
            if found is None or found[1] >= step:
                high = middle
            else:
                low = found[0] + 1
        found = self._row_from(low, self._source.size)
        return found[0] if found else self._source.size

    def _row_from(self, place: int, end: int) -> tuple[int, int] | None:
        """Offset and step of the first row that begins at a place or after it, and before an end."""
        start = self._line_start(place)
        for offset, line in self._lines(start, end):
            sample = read_sample(offset, line, Reasons([]))
            if sample is not None:
                return offset, sample[1]
        return None

    def _line_start(self, place: int) -> int:
        """The start of the first line that begins at a place or after it."""
        if place == 0:
            return 0
        position = place - 1
        while data := os.pread(self._source.descriptor, CHUNK, position):
            end = data.find(b"\n")
            if end >= 0:
                return position + end + 1
            position += len(data)
        return self._source.size

    def _step_at(self, offset: int) -> int | None:
        found = self._row_from(offset, self._source.size)
        return found[1] if found else None

    def _last_before(self, end: int) -> int | None:
        """The step of the last row before an offset."""
        size = CHUNK
        while True:
            start = self._line_start(max(0, end - size))
            steps = [
                sample[1]
                for offset, line in self._lines(start, end)
                if (sample := read_sample(offset, line, Reasons([]))) is not None
            ]
            if steps:
                return steps[-1]
            if size >= end:
                return None
            size *= 4

    def _lines(self, start: int, end: int | None = None) -> Iterator[tuple[int, bytes]]:
        """Whole lines that begin from ``start`` on and before ``end``, without superseded ones."""
        offset, rest = start, b""
        while end is None or offset < end:
            if (past := range_end(offset, self._ranges)) > offset:
                offset, rest = past, b""
                continue
            data = os.pread(self._source.descriptor, CHUNK, offset + len(rest))
            if not data:
                return
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                if range_end(offset, self._ranges) > offset or (end is not None and offset >= end):
                    rest = b""
                    break
                if len(line) <= MAX_LINE:
                    yield offset, line
                offset += len(line) + 1
            if len(rest) > MAX_LINE:
                offset, rest = self._line_start(offset + len(rest)), b""
