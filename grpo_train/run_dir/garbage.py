"""No garbage collection while a program starts, and none when it ends.

Of what a program imports and creates first, hardly anything is garbage: collections are a quarter of the time that
importing torch and transformers takes. When it ends, the kernel frees all its memory at once.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from contextlib import suppress
from typing import NoReturn


def pause_collection() -> None:
    """Collect nothing until the program has started."""
    gc.disable()


def resume_collection() -> None:
    """Collect as usual, except what exists now: going through all of it would block the program each time."""
    if not gc.isenabled():
        gc.freeze()
        atexit.register(gc.unfreeze)  # some libraries report as leaks what is frozen when the interpreter ends
        gc.enable()


def end_at_once(code: int) -> NoReturn:
    """End this process: threads and exit handlers run as usual, but its memory is not released object by object, which
    takes a second with torch."""
    _codes.append(code)
    sys.exit(code)


_codes: list[int] = []
"""The exit code, once the process ends by :func:`end_at_once`."""


def _leave() -> None:
    if not _codes:
        return
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with suppress(OSError):  # its reader has gone
                stream.flush()
    if "ctypes" in sys.modules and os.name == "posix":
        sys.modules["ctypes"].CDLL(None).fflush(None)  # what libraries in C have printed
    os._exit(_codes[-1])


atexit.register(_leave)  # the last to run: handlers that are registered later run first
