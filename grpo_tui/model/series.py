"""One metric over steps, in growing columns. Plain ``array`` columns: importing numpy would delay the first frame."""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left

Span = tuple[int, int]
EMA_DECAY = 0.85
HUGE = 1e300
"""Values from here on count as infinite: arithmetic on them would overflow."""


class Series:
    """Finite points (``steps``, ``values``) with their debiased moving average (``smooth``).

    The steps of NaN and infinite values are in ``gaps``: the drawn line breaks there.
    """

    def __init__(self) -> None:
        self.steps = array("d")
        self.values = array("d")
        self.smooth = array("d")
        self._offsets = array("q")
        self.gaps = array("d")
        self._gap_offsets = array("q")
        self.last: float | None = None
        """The newest value, which may be NaN or infinite."""
        self._ema = 0.0
        self._weight = 0.0

    def __len__(self) -> int:
        return len(self.steps)

    def append(self, step: float, value: float, offset: int) -> None:
        """Add a point. ``offset`` is the byte offset of its row in the log."""
        self.last = value
        if not abs(value) < HUGE:
            self.gaps.append(step)
            self._gap_offsets.append(offset)
            return
        self.steps.append(step)
        self.values.append(value)
        self._offsets.append(offset)
        self._smoothen(value)

    def _smoothen(self, value: float) -> None:
        # Debiased as in Adam: the average starts at 0.
        self._ema = EMA_DECAY * self._ema + (1 - EMA_DECAY) * value
        self._weight = EMA_DECAY * self._weight + (1 - EMA_DECAY)
        self.smooth.append(self._ema / self._weight)

    def remove(self, spans: list[Span]) -> None:
        """Remove the points whose offsets are in one of the ranges ``[low, high)``."""
        before = len(self)
        for span in spans:
            _cut(span, self._offsets, self.steps, self.values)
            _cut(span, self._gap_offsets, self.gaps)
        if len(self) < before:
            self.smooth, self._ema, self._weight = array("d"), 0.0, 0.0
            for value in self.values:
                self._smoothen(value)
        ends_in_gap = self._gap_offsets and (not self._offsets or self._gap_offsets[-1] > self._offsets[-1])
        self.last = math.nan if ends_in_gap else self.values[-1] if self.values else None

    def thin(self) -> None:
        """Keep about half of the points: of four, the smallest and the largest, so that no peak is lost."""
        kept: list[int] = []
        for start in range(0, len(self), 4):
            four = self.values[start : start + 4]
            kept += sorted({start + four.index(min(four)), start + four.index(max(four))})
        if kept and kept[-1] != len(self) - 1:
            kept.append(len(self) - 1)
        self.steps, self.values, self.smooth = (
            array("d", [column[i] for i in kept]) for column in (self.steps, self.values, self.smooth)
        )
        self._offsets = array("q", [self._offsets[i] for i in kept])
        self.gaps, self._gap_offsets = self.gaps[::2], self._gap_offsets[::2]

    def recent(self, count: int) -> list[float]:
        """The last ``count`` finite values."""
        return list(self.values[-count:])


def _cut(span: Span, offsets: array[int], *columns: array[float]) -> None:
    """Remove the rows whose offsets, which ascend, are within a range."""
    low, high = bisect_left(offsets, span[0]), bisect_left(offsets, span[1])
    del offsets[low:high]
    for column in columns:
        del column[low:high]
