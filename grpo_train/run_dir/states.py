"""Display of run states, shared by the app and ``grpo-train``. Standard library only."""

from __future__ import annotations

STATES = {
    "starting": ("◌", "starting", "live"),
    "running": ("●", "running", "live"),
    "stopping": ("◍", "stopping", "busy"),
    "evaluating": ("◆", "evaluating", "busy"),
    "stopped": ("■", "stopped", "rest"),
    "finished": ("✔", "finished", "good"),
    "crashed": ("✖", "crashed", "bad"),
    "killed": ("✖", "killed", "bad"),
    "lost": ("?", "lost", "warn"),
    "old layout": ("·", "old layout", "rest"),
}
"""Glyph, word and tone of each state. A theme colors the tone; glyph and word carry the meaning without it."""


def state_label(state: str, host: str = "") -> tuple[str, str, str]:
    """Glyph, word and tone of a run state; ``host`` is set when the run is live on another host."""
    glyph, word, tone = STATES.get(state, ("?", state or "unknown", "warn"))
    return glyph, f"{word} on {host}" if host else word, tone
