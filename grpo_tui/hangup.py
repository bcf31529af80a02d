"""Exit when the terminal closes. Runs on the box continue. No Textual."""

from __future__ import annotations

import os
import select
import sys
import threading


def end_with_terminal() -> None:
    """Exit at once when the terminal closes.

    The kernel signals only the session leader, which may be a ``make`` that waits for this process; Textual then reads
    end-of-file forever. On a separate thread, because the app's loop blocks writing to the closed terminal.
    """
    if not hasattr(select, "poll"):
        return  # Windows
    threading.Thread(target=_wait_for_hangup, args=(sys.stdin.fileno(),), name="hangup", daemon=True).start()


def _wait_for_hangup(descriptor: int) -> None:
    watched = select.poll()
    watched.register(descriptor, 0)  # hang-ups are always reported
    if any(event & select.POLLHUP for _, event in watched.poll()):
        os._exit(129)  # 128 + SIGHUP
