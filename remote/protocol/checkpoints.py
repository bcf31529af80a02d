"""Requests about the room that checkpoints take, and which of them can go."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, TypedDict

from remote.protocol.fields import Count, Label, Name, Time

Row: TypeAlias = dict[str, Any]
MAX_SIZES = 500
"""Runs of a ``checkpoint_sizes`` reply, the largest ones."""
MAX_SPARE = 5_000
"""Checkpoints of a ``spare_checkpoints`` reply."""


@dataclass(frozen=True)
class CheckpointSizesRequest:
    """Bytes of the checkpoints of each run. A request measures for a bounded time; the next one continues."""


@dataclass(frozen=True)
class SpareCheckpointsRequest:
    """The checkpoints that nothing needs."""


class CheckpointSizesReply(TypedDict):
    sizes: list[Row]
    """SizeRow, the largest first."""
    runs: Count
    """Runs with checkpoints, among those measured."""
    checkpoints: Count
    bytes: Count
    """Of all runs that are measured."""
    day_bytes: Count
    """Of those saved in the last 24 hours."""
    unmeasured: Count
    """Runs that are not measured yet."""


class SpareCheckpointsReply(TypedDict):
    spare: list[Row]
    """SpareRow, by run and step."""
    more: Count
    """Checkpoints left out of a list that is too long."""
    problems: list[str]
    """Why checkpoints of a run, or of all runs, are not listed."""


class _Size(TypedDict):
    run: Name


class SizeRow(_Size, total=False):
    """The checkpoints of a run."""

    count: Count
    bytes: Count


class _Spare(TypedDict):
    run: Name


class SpareRow(_Spare, total=False):
    """A checkpoint that nothing needs."""

    step: Count
    bytes: Count
    saved_at: Time
    evaluated: Label
    """Its accuracy on each dataset; "" where it is not evaluated."""
