"""Text for run states and durations, shared by the app and ``grpo-train``. Standard library only."""

from __future__ import annotations

import math

STATES = {
    "pending": ("○", "pending", "rest"),
    "starting": ("◌", "starting", "live"),
    "running": ("●", "running", "live"),
    "stopping": ("◍", "stopping", "busy"),
    "evaluating": ("◆", "evaluating", "busy"),
    "stalled": ("◐", "stalled", "bad"),
    "requeued": ("↺", "requeued", "rest"),
    "stopped": ("■", "stopped", "rest"),
    "finished": ("✔", "finished", "good"),
    "crashed": ("✖", "crashed", "bad"),
    "killed": ("✖", "killed", "bad"),
    "lost": ("?", "lost", "warn"),
    "unreadable": ("▲", "unreadable", "warn"),
    "old layout": ("·", "old layout", "rest"),
}
"""Glyph, word and tone of each state. A theme colors the tone; glyph and word carry the meaning without it."""


def state_label(state: str, host: str = "") -> tuple[str, str, str]:
    """Glyph, word and tone of a run state; ``host`` is set when the run is live on another host."""
    glyph, word, tone = STATES.get(state, ("?", state or "unknown", "warn"))
    return glyph, f"{word} on {host}" if host else word, tone


def duration(seconds: float) -> str:
    """A time span in at most two units: ``8 s``, ``41 m``, ``3 h 05 m``, ``2 d 4 h``."""
    if not math.isfinite(seconds):
        return "–"
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if minutes < 10:
        return f"{minutes} m {whole % 60:02d} s"
    if hours < 1:
        return f"{minutes} m"
    if days < 1:
        return f"{hours} h {minutes % 60:02d} m"
    return f"{days} d {hours % 24} h"


def short_hours(hours: float) -> str:
    """Hours without a unit: ``12.3``, ``0.0061``."""
    return f"{hours:{'.1f' if hours >= 1 else '.2g'}}"
