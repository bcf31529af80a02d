"""No garbage collection during startup: hardly anything that imports and the first frame create is garbage."""

from __future__ import annotations

import gc


def pause_collection() -> None:
    """Collect nothing until the app has started."""
    gc.disable()


def resume_collection() -> None:
    """Collect as usual, except what exists now: a full collection of it would block the app for 50 ms."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()
