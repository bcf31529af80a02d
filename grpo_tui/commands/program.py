"""Commands on the program itself: suspend, quit."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import threading

from rich.text import Text

from grpo_tui.kit.attach import has_job_control
from grpo_tui.kit.desk import Desk


def suspend(app: Desk) -> None:
    """Suspend the app; fg in the shell returns to it."""
    if sys.platform == "win32" or app.is_web or app.is_headless:
        app.warn("this terminal cannot be suspended")
    elif not has_job_control():
        app.warn("no shell waits that could continue the app: it was started without one", title="not suspended")
    else:
        with app.suspend():
            continued = threading.Event()
            before = signal.signal(signal.SIGCONT, lambda *_: continued.set())
            # With what started it, such as `uv run`, or the shell would not notice; SIGTSTP Textual would handle later.
            os.killpg(os.getpgrp(), signal.SIGSTOP)
            while not continued.wait(0.05):  # until then the others of its threads may run on; any may get SIGCONT
                pass
            signal.signal(signal.SIGCONT, before)


def quit_app(app: Desk) -> None:
    """Quit; runs on the box continue.

    The exit message names them.
    """
    live = app.store.live_runs()
    message = None
    if live:
        runs = ", ".join(f"{row.name} ({row.step}/{row.total_steps or '?'})" for row in live)
        command = "grpo-tui --demo" if app.options.demo else shlex.join(_return_command(app))
        verb = "continues" if len(live) == 1 else "continue"
        message = Text(f"{runs} {verb} on box {app.store.box}. To return: {command}")  # a str would be markup
    app.exit(message=message)


def _return_command(app: Desk) -> list[str]:
    """The command that opens the shown box again."""
    command = ["grpo-tui", "--box", app.store.box]
    options = app.options
    return [*command, "--root", options.root] if options.root and app.store.box == options.box.name else command
