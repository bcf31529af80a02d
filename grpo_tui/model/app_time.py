"""The clock of the app. No Textual."""

from __future__ import annotations

import asyncio
import time


def monotonic() -> float:
    """Seconds on the clock of the running event loop, by which the app's timers run: this machine's, but in tests."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:  # a thread without one
        return time.monotonic()
