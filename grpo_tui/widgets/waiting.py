"""What a panel says while it waits for the box."""

from __future__ import annotations

from textual.content import Content

from grpo_tui.model.app_time import monotonic
from grpo_tui.model.asking import WAIT_S, waiting_words


def waiting(asked_at: float | None, problem: str = "", always: bool = False) -> Content | None:
    """``asking the box 3 s``, or the problem; None if there is nothing to say. ``asked_at``: monotonic clock."""
    if problem:
        return Content.from_markup("[$warning]$text[/]", text=problem)
    if asked_at is None or (monotonic() - asked_at < WAIT_S and not always):
        return None
    return Content.from_markup("[$text-muted]$text[/]", text=waiting_words(asked_at))
