"""Reward curves of a few cells for the runs that the list shows, and their smoothed last value. No Textual."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.run_row import RunRow
from remote.protocol.index import AUTOMATIC, Columns
from remote.protocol.rows import UNREADABLE

CELLS = 8
"""Cells of a curve: two pixel columns and four pixel rows each."""
LEAST = 12
"""Values below which there is no trend."""
AGAIN_S = 15.0
"""Pause before the curve of a live run is asked for again …"""
COARSE_S = 1.0
"""… and while the box makes its index."""
MOST_KEPT = 2_000
ARROWS = ("↘", "→", "↗")
FLAT = 0.07
"""Share of its range that a curve rises or falls over its last quarter before it counts as a trend."""
_BITS = ((0x40, 0x04, 0x02, 0x01), (0x80, 0x20, 0x10, 0x08))
"""Braille dots of a cell by column and height."""


@dataclass(frozen=True)
class Trend:
    """The moving average of a run's reward."""

    curve: str
    last: float | None
    """The newest value of the moving average."""
    arrow: str
    """``↗``, ``→``, ``↘``, or "" for too few values."""


class Trends:
    """What the box said about each run, and which run to ask for next."""

    def __init__(self, now: Callable[[], float] = monotonic) -> None:
        self.version = 0
        self._known: dict[str, Trend] = {}
        self._state: dict[str, object] = {}
        self._not_before: dict[str, float] = {}
        self._pending: tuple[str, object] | None = None
        self._now = now

    def of(self, run: str) -> Trend | None:
        """The trend of a run, once it is known."""
        return self._known.get(run)

    def request(self, rows: Iterable[RunRow]) -> dict[str, Any] | None:
        """The parameters of the ``series`` request to send now, for one of the rows shown; None if there is none."""
        if self._pending is not None:
            return None
        now = self._now()
        for row in rows:
            state = (row.started, row.step)
            due = self._state.get(row.name) != state and self._not_before.get(row.name, 0.0) <= now
            if due and row.layout == "run" and row.step > 0 and not row.is_unreadable:
                self._pending = (row.name, state)
                return {"run": row.name, "metrics": ["reward"], "width": 2 * CELLS, "smoothing": AUTOMATIC}
        return None

    def answer(self, reply: Mapping[str, Any]) -> None:
        """Apply the reply to the request in flight. A coarse one shows nothing."""
        assert self._pending is not None
        (run, state), self._pending = self._pending, None
        is_whole = reply["state"] == "whole"
        self._not_before[run] = self._now() + (AGAIN_S if is_whole else COARSE_S)
        if not is_whole:
            return
        self._state[run] = state
        row = next((row for row in reply["series"] if UNREADABLE not in row), None)
        if row is not None:
            self._known[run] = trend_of(row)
            self.version += 1
        while len(self._known) > MOST_KEPT:
            oldest = next(iter(self._known))
            del self._known[oldest], self._state[oldest]

    def fail(self) -> None:
        """The box did not answer the request in flight."""
        assert self._pending is not None
        (run, _), self._pending = self._pending, None
        self._not_before[run] = self._now() + AGAIN_S


def trend_of(row: Mapping[str, Any]) -> Trend:
    """The trend of a SeriesRow."""
    columns: Columns = row["columns"]
    counted = [index for index, count in enumerate(columns.count) if count]
    smooth = [columns.smooth[index] for index in counted]
    weight = float(row.get("weight") or 0.0)
    last = float(row.get("average") or 0.0) / weight if weight > 0 else None
    if not smooth:
        return Trend("", last, "")
    low, high = min(smooth), max(smooth)
    arrow = ""
    if sum(columns.count) >= LEAST and len(smooth) > 1:
        change = smooth[-1] - smooth[-1 - max(1, len(smooth) // 4)]
        arrow = "→" if abs(change) <= FLAT * (high - low) else "↗" if change > 0 else "↘"
    heights = {index: _height(value, low, high) for index, value in zip(counted, smooth, strict=True)}
    return Trend("".join(_cell(heights.get(2 * cell), heights.get(2 * cell + 1)) for cell in range(CELLS)), last, arrow)


def _height(value: float, low: float, high: float) -> int:
    return round(3 * (value - low) / (high - low)) if high > low else 1


def _cell(left: int | None, right: int | None) -> str:
    bits = sum(_BITS[side][height] for side, height in ((0, left), (1, right)) if height is not None)
    return chr(0x2800 + bits) if bits else " "
