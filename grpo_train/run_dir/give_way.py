"""Lowering the priority of a process, so that training on the same machine does not wait for it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

LOWEST = 19


def give_way() -> None:
    """Give this process, and what it starts, the lowest priority. It cannot be raised again."""
    os.nice(LOWEST)
    if os.getsid(0) == os.getpid():  # Linux shares a CPU between sessions first: this one's own priority counts, too
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(LOWEST))
