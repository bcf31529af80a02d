"""How the program ends: at once, also when its terminal closes, and after a crash with a clean report.

Runs on the box continue. No Textual.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from types import TracebackType


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


def report_crashes_clean() -> None:
    """Print the traceback of an exception that nothing caught without what would steer a terminal.

    Its message may hold text from a box. Those of the app pass :class:`grpo_tui.kit.crash_report.CrashReport`.
    """
    sys.excepthook = _print_clean
    threading.excepthook = lambda thread: _print_clean(
        thread.exc_type, thread.exc_value or thread.exc_type(), thread.exc_traceback
    )


def _print_clean(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    from remote.protocol.text import clean

    if sys.stderr is not None:
        print(clean("".join(traceback.format_exception(kind, error, trace))), end="", file=sys.stderr)
