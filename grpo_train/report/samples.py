"""Some completions of a run that say much: picked from ``rollouts.jsonl`` without reading all of it. Torch-free."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_train.run_dir import RunDir
from grpo_train.run_dir.files import ByteRange, parse_line, to_float
from grpo_train.run_dir.formats import current_row
from grpo_train.run_dir.safe_json import MAX_LINE_BYTES, open_regular, read_lines

Row = dict[str, Any]
LAST_STEPS = 5
"""Steps with completions that the last ones are picked from."""
MAX_BYTES = 64 << 20
"""Of the completions of one step that are looked at."""
NEAR = 64
"""Steps at most between a buffer's completions and an update that uses them."""
FAR = 1 << 40


@dataclass
class PickedSample:
    """A completion, and why it was picked."""

    step: int
    row: Row
    why: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Samples:
    """Completions picked from some steps; none where the log lacks them."""

    title: str
    rows: list[PickedSample]


def pick_samples(run: RunDir, last_step: int, unusual_step: int | None) -> list[Samples]:
    """Completions of the last steps, and of the step with the highest gradient norm, without discarded ones.

    Raises OSError, Unreadable.
    """
    path = run.logs / "rollouts.jsonl"
    if not path.exists():
        return []
    rollouts = _Rollouts(path, run.superseded().get(path.name, []))
    found = []
    latest: list[PickedSample] = []
    before = last_step
    for _ in range(LAST_STEPS):
        step, rows = rollouts.at(before, FAR)
        if step is None:
            break
        latest += pick(step, rows, skip={why for sample in latest for why in sample.why})
        before = step - 1
    if latest:
        found.append(Samples("Last steps", latest))
    if unusual_step is not None:
        step, rows = rollouts.at(unusual_step, NEAR)
        title = f"Highest grad_norm (step {unusual_step:,})"
        found.append(Samples(title, [] if step is None else pick(step, rows)))
    return found


def pick(step: int, rows: list[Row], skip: set[str] | frozenset[str] = frozenset()) -> list[PickedSample]:
    """A correct, a wrong, the longest and a truncated completion; without verdicts, those with the highest and the
    lowest reward. ``skip``: what is not needed."""
    chosen: dict[int, PickedSample] = {}

    def choose(why: str, among: list[int], best: Any) -> None:
        if why not in skip and among:
            at = max(among, key=best)
            chosen.setdefault(at, PickedSample(step, rows[at])).why.append(why)

    def reward(at: int) -> float:
        value = to_float(rows[at].get("reward"))
        return value if value is not None and value == value else 0.0

    everything = range(len(rows))
    right = [at for at in everything if rows[at].get("correct") is True]
    wrong = [at for at in everything if rows[at].get("correct") is False]
    if right or wrong:
        choose("correct", right, reward)
        choose("wrong", [at for at in wrong if not rows[at].get("truncated")] or wrong, lambda at: -reward(at))
    else:
        choose("highest reward", list(everything), reward)
        choose("lowest reward", list(everything), lambda at: -reward(at))
    choose("longest", list(everything), lambda at: to_float(rows[at].get("length")) or 0)
    choose("truncated", [at for at in everything if rows[at].get("truncated") is True], lambda at: 0)
    return list(chosen.values())


class _Rollouts:
    """A log whose steps rise, outside the superseded ranges."""

    def __init__(self, path: Path, ranges: list[ByteRange]) -> None:
        self._path, self._ranges = path, sorted(ranges)
        self._size = path.stat().st_size

    def at(self, step: int, reach: int) -> tuple[int | None, list[Row]]:
        """The completions of a step, else of the nearest one up to ``reach`` steps earlier; (None, []) without one."""
        distance = 0
        while True:
            found: tuple[int | None, list[Row]] = (None, [])
            start = self._first(step - distance)
            for offset, row in self._rows(start):
                at = int(row["step"])
                if at > step:
                    break
                if at != found[0]:
                    found, start = (at, []), offset
                if offset - start < MAX_BYTES and "discarded" not in row:  # rollout.filter_groups
                    found[1].append(row)
            if found[0] is not None:
                return found
            if distance >= reach or distance >= step:
                return None, []
            distance = min(distance * 2 + 1, reach)

    def _first(self, step: int) -> int:
        """Offset of the first row of a step or a later one; the size of the file if there is none."""
        low, high = 0, self._size
        while low < high:
            middle = (low + high) // 2
            offset, row = next(self._rows(middle, high), (high, None))
            if row is None or row["step"] >= step:
                high = middle
            else:
                low = offset + 1
        return next(self._rows(low), (self._size, None))[0]

    def _rows(self, place: int, end: float = math.inf) -> Iterator[tuple[int, Row]]:
        """Offset and row of each valid line that begins at a place or after it, and before an end."""
        with open_regular(self._path) as file:
            start = file.seek(max(0, place - 1))
            if place:
                while (piece := file.readline(MAX_LINE_BYTES)) and not piece.endswith(b"\n"):
                    pass
                start = file.tell()
            while (skipped := self._end_of_range(start)) is not None:
                start = file.seek(skipped)
            for offset, line in read_lines(file):
                if start + offset >= end:
                    return
                if self._end_of_range(start + offset) is not None:
                    continue
                row = parse_line(self._path, start + offset, line)
                if row is None:
                    continue
                row = current_row(row)
                step = to_float(row.get("step"))
                if step is not None and step == step and abs(step) < 1e12:
                    yield start + offset, row

    def _end_of_range(self, offset: int) -> int | None:
        return next((high for low, high in self._ranges if low <= offset < high and high > offset), None)
