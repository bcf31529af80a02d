"""What a panel says while it waits for the box."""

from __future__ import annotations

import time

from textual.content import Content

WAIT_S = 1.0
"""An answer that takes longer shows how long."""


def waiting(asked_at: float | None, problem: str = "", always: bool = False) -> Content | None:
    """``asking the box 3 s``, or the problem; None if there is nothing to say. ``asked_at``: monotonic clock."""
    if problem:
        return Content.from_markup("[$warning]$text[/]", text=problem)
    waited = time.monotonic() - asked_at if asked_at is not None else 0.0
    if asked_at is None or (waited < WAIT_S and not always):
        return None
    seconds = f" {waited:.0f} s" if waited >= WAIT_S else ""
    return Content.from_markup("[$text-muted]asking the box$seconds[/]", seconds=seconds)
