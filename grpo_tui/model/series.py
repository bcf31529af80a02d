"""One metric over steps, in growing columns. Plain ``array`` columns: importing numpy would delay the first frame."""

from __future__ import annotations

import math
from array import array

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
        # Debiased as in Adam: the average starts at 0.
        self._ema = EMA_DECAY * self._ema + (1 - EMA_DECAY) * value
        self._weight = EMA_DECAY * self._weight + (1 - EMA_DECAY)
        self.smooth.append(self._ema / self._weight)

    def without(self, span: tuple[int, int]) -> Series:
        """A copy without the points whose offsets are in ``[low, high)``."""
        points = [*zip(self._offsets, self.steps, self.values, strict=True)]
        points += [(offset, step, math.nan) for offset, step in zip(self._gap_offsets, self.gaps, strict=True)]
        copy = Series()
        for offset, step, value in sorted(points, key=lambda point: point[0]):
            if not span[0] <= offset < span[1]:
                copy.append(step, value, offset)
        return copy

    def recent(self, count: int) -> list[float]:
        """The last ``count`` finite values."""
        return list(self.values[-count:])
