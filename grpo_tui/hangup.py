"""The end of the terminal is the end of the app; runs on the box go on. No Textual."""

from __future__ import annotations

import os
import select
import sys
import threading


def end_with_terminal() -> None:
    """Leave at once when the terminal goes away (its window was closed).

    The kernel tells only the session's leader, which may be a ``make`` that waits for us; Textual then reads an end of
    file for ever. A thread of its own, because the app's loop is stuck writing to a terminal that is gone.
    """
    if not hasattr(select, "poll"):
        return  # Windows
    threading.Thread(target=_wait_for_hangup, args=(sys.stdin.fileno(),), name="hangup", daemon=True).start()


def _wait_for_hangup(descriptor: int) -> None:
    watched = select.poll()
    watched.register(descriptor, 0)  # a hang-up is always reported
    if any(event & select.POLLHUP for _, event in watched.poll()):
        os._exit(129)  # as SIGHUP would have it
