"""One metric over steps, as columns that grow. Plain ``array`` columns: numpy would cost the first frame 60 ms."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable

EMA_DECAY = 0.85
HUGE = 1e300
"""From here on a value counts as infinite: arithmetic on it would overflow."""


class Series:
    """Finite points (``steps``, ``values``) with a debiased moving average (``smooth``), and the steps of the others.

    A NaN or an infinity is never dropped: its step is kept in ``gaps``, where the drawn line breaks.
    """

    def __init__(self) -> None:
        self.steps = array("d")
        self.values = array("d")
        self.smooth = array("d")
        self._offsets = array("q")
        self.gaps = array("d")
        self._gap_offsets = array("q")
        self.last: float | None = None
        """The newest value, NaN included."""
        self._ema = 0.0
        self._weight = 0.0

    def __len__(self) -> int:
        return len(self.steps)

    def append(self, step: float, value: float, offset: int) -> None:
        """Add a point that was logged at byte ``offset``."""
        self.last = value
        if not abs(value) < HUGE:
            self.gaps.append(step)
            self._gap_offsets.append(offset)
            return
        self.steps.append(step)
        self.values.append(value)
        self._offsets.append(offset)
        # Debiased as in Adam: without it the first points would be pulled towards 0.
        self._ema = EMA_DECAY * self._ema + (1 - EMA_DECAY) * value
        self._weight = EMA_DECAY * self._weight + (1 - EMA_DECAY)
        self.smooth.append(self._ema / self._weight)

    def without(self, ranges: Iterable[tuple[int, int]]) -> Series:
        """A copy without the points logged inside the byte ranges."""
        void = list(ranges)
        points = [*zip(self._offsets, self.steps, self.values, strict=True)]
        points += [(offset, step, math.nan) for offset, step in zip(self._gap_offsets, self.gaps, strict=True)]
        copy = Series()
        for offset, step, value in sorted(points, key=lambda point: point[0]):
            if not any(low <= offset < high for low, high in void):
                copy.append(step, value, offset)
        return copy

    def recent(self, count: int) -> list[float]:
        """The last ``count`` finite values."""
        return list(self.values[-count:])
