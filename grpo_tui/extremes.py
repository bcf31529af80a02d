"""Finding the row of the highest or lowest value: the laptop knows the pixel column, the box the rows in it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from grpo_tui.model.formatting import metric_value
from remote.protocol import RemoteError
from remote.protocol.index import MAX_WIDTH
from remote.protocol.rows import UNREADABLE

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

MOST_REQUESTS = 4
FINEST = {"step": 0.5, "tokens": 0.5, "time": 1e-3, "seconds": 1e-3}
"""A range of this width has one row."""


@dataclass(frozen=True)
class Place:
    """A range of an axis that has the highest, or lowest, value of a metric."""

    run: str
    metric: str
    axis: str
    low: float
    high: float
    is_highest: bool


async def go_to_extreme(app: Desk, place: Place, go: Callable[[float], None]) -> None:
    """Call ``go`` with the x of the row, and say which metric has which value there."""
    low, high = place.low, place.high
    value = math.nan
    try:
        for _ in range(MOST_REQUESTS):  # each narrows the range to one of MAX_WIDTH columns
            reply = await app.request(
                "series", timeout=30.0, run=place.run, metrics=[place.metric], x=place.axis, low=low, high=high,
                width=MAX_WIDTH, smoothing=0,
            )  # fmt: skip
            (row,) = reply["series"]
            if UNREADABLE in row:
                return
            columns = row["columns"]
            found = [i for i in range(MAX_WIDTH) if columns.count[i]]
            if not found:
                return
            values = columns.max if place.is_highest else columns.min
            best = (max if place.is_highest else min)(found, key=values.__getitem__)
            value = values[best]
            one = (high - low) / MAX_WIDTH
            low, high = low + best * one, low + (best + 1) * one
            if len(found) == 1 or one < FINEST[place.axis]:
                break
    except RemoteError as error:
        app.warn(error.message)
        return
    go((low + high) / 2)
    end = "highest" if place.is_highest else "lowest"
    app.receipt(f"{place.metric}: {end} value {metric_value(value)}")
