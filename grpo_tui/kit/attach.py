"""Attaching to tmux sessions: the command, the keys that detach, and handing over the terminal."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from remote.boxes import Box

if TYPE_CHECKING:
    from grpo_tui.kit.desk import Desk

RunForeground = Callable[[list[str]], int]
"""Runs a command in the terminal while the app is suspended; returns its exit status."""


@dataclass(frozen=True)
class Handover:
    """The attach command, and the keys that detach."""

    argv: list[str]
    detach: str
    note: str = ""


def plan(box: Box, session: str, environment: Mapping[str, str] = os.environ) -> Handover:
    """How to attach to a session on a box from this terminal."""
    argv = attach_command(box, session)
    keys = key_text(tmux_prefix(box.tmux_socket) if box.is_local else "C-b")
    if environment.get("TMUX"):
        # The outer tmux consumes the first prefix and passes on the second.
        outer = key_text(tmux_prefix("")) if not box.is_local else keys
        return Handover(argv, f"{outer} {keys} d", "grpo-tui runs inside tmux, whose prefix comes first")
    note = "" if box.is_local else f"{keys} is the default prefix of tmux; the box may use another"
    return Handover(argv, f"{keys} d", note)


def plan_job(box: Box, job: str) -> Handover:
    """How to open a shell in a SLURM job (``job 12``), beside the run."""
    from remote.transports.choice import terminal_argv

    argv = terminal_argv(box, ["srun", f"--jobid={job.removeprefix('job ')}", "--overlap", "--pty", "bash"])
    return Handover(argv, "exit", "a shell on the job's first node; it has the GPUs of the job")


def attach_command(box: Box, session: str) -> list[str]:
    """``tmux attach`` on this machine, or through ``ssh -t`` on a remote box."""
    from remote.transports.choice import attach_argv

    return attach_argv(box, session)


def tmux_prefix(socket: str) -> str:
    """Prefix key of this machine's tmux in tmux's notation; ``C-b`` if it is unknown."""
    command = ["tmux", *(["-L", socket] if socket else []), "show-options", "-g", "-v", "prefix"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2)
    except (OSError, subprocess.SubprocessError):
        return "C-b"
    return done.stdout.strip() or "C-b"


def key_text(key: str) -> str:
    """A key in tmux's notation (``C-b``) as text (``ctrl+b``)."""
    return key.replace("C-", "ctrl+").replace("M-", "alt+")


def has_job_control() -> bool:
    """Whether a shell waits that can continue this program: an ancestor in this session, with a job of its own.

    Without one, as in ``tmux new-window grpo-tui`` and ``ssh -t BOX grpo-tui``, a suspended program is stuck.
    """
    pid = os.getppid()
    try:
        while os.getsid(pid) == os.getsid(0):
            if os.getpgid(pid) != os.getpgrp():
                return True
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
    except OSError:  # it has ended; this is not Linux
        pass
    return False


def call_in_foreground(argv: list[str]) -> int:
    """Run a command in the foreground. Synchronous: the app's loop must not run while it is suspended.

    Ctrl+C and Ctrl+\\ reach every process of the terminal; here they end the command alone, as in ``system(3)``.
    """
    # Handlers instead of SIG_IGN, which the command would inherit.
    numbers = [getattr(signal, name) for name in ("SIGINT", "SIGQUIT") if hasattr(signal, name)]  # Windows has one
    before = {number: signal.signal(number, lambda *_: None) for number in numbers}
    try:
        return subprocess.call(argv)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def attach_to(app: Desk, session: str, plan: Callable[[Box, str], Handover] = plan) -> None:
    """Attach to a tmux session, or to what else ``plan`` makes of a name; detach to return here."""
    from grpo_tui.kit.dialog import AttachScreen

    try:
        handover = await asyncio.to_thread(plan, app.connection.box, session)
    except Exception as error:  # no OpenSSH, an alias that does not resolve, …
        app.show_error("cannot attach", str(error))
        return
    screen = AttachScreen(session, app.store.box, shlex.join(handover.argv), handover.detach, handover.note)
    if await app.show_dialog(screen):
        code, problem = run_in_terminal(app, handover.argv, f"to return: {handover.detach}")
        if problem:
            app.show_error("cannot attach", problem)
        elif code:
            app.warn(f"the command exited with code {code}", title=f"attach to {session}")


def run_in_terminal(app: Desk, argv: list[str], note: str) -> tuple[int, str]:
    """Hand the terminal to a command: (exit status, why it could not be started).

    Synchronous, and no exception leaves the ``with`` block: either would leave the terminal broken.
    """
    from textual.app import SuspendNotSupported

    problem, code = "", 0
    try:
        with app.suspend():
            try:
                print(f"\n{' '.join(argv)}\n{note}\n", file=sys.__stdout__, flush=True)
                code = app.run_foreground(argv)
            except BaseException as error:
                problem = str(error) or type(error).__name__
    except SuspendNotSupported:
        problem = "this terminal cannot be suspended"
    app.refresh(layout=True)
    return code, problem
