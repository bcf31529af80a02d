"""Whether a box can be terminated: request and reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

from remote.protocol.fields import Count, Label, Name, Quantity

MAX_LISTED = 500
"""Obstacles of a reply."""


@dataclass(frozen=True)
class SafeToTerminateRequest:
    """Whether the box can be terminated without losing anything."""

    now: bool = False
    """Ask the engine even while something is live, or where nothing changed since it was asked last."""


class SafeToTerminateReply(TypedDict):
    safe: bool
    kept: Label
    """``backup``, ``mount`` (on the mount only, no second copy), or "" where it is not safe."""
    obstacles: list[dict[str, Any]]
    """ObstacleRow."""
    count: Count
    """Obstacles, with those that are not listed."""
    whole: bool
    """False while something is live: only that is listed then."""
    age_s: Quantity
    """Seconds since the engine was asked, or since the box was looked at."""
    again_s: Quantity
    """Seconds after which the box may be asked again at little cost; an answer is old after some of these."""


class _Obstacle(TypedDict):
    name: Name


class ObstacleRow(_Obstacle, total=False):
    """What would be lost with the box, or cut off."""

    kind: Label
    code: Label
    """As in :mod:`grpo_train.backup.terminate`, or ``changed``: files changed since the engine was asked."""
    reason: str
    command: str
    """What ends it; "" where no single command does."""
