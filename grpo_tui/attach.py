"""Handing the terminal over to tmux: the command, and the keys that come back. No Textual."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from remote.boxes import Box

RunForeground = Callable[[list[str]], int]
"""Runs a command in the terminal that the app has given up meanwhile; returns its exit status."""


@dataclass(frozen=True)
class Handover:
    """What attaching runs, and how one comes back."""

    argv: list[str]
    detach: str
    note: str = ""


def plan(box: Box, session: str, environment: Mapping[str, str] = os.environ) -> Handover:
    """How to attach to a session of a box from this terminal."""
    argv = attach_command(box, session)
    keys = spoken(tmux_prefix(box.tmux_socket) if box.is_local else "C-b")
    if environment.get("TMUX"):
        # A client inside a client: the outer one takes the first prefix, and passes on the one that follows it.
        outer = spoken(tmux_prefix("")) if not box.is_local else keys
        return Handover(argv, f"{outer} {keys} d", "this program runs inside tmux itself: its prefix comes first")
    return Handover(
        argv, f"{keys} d", "" if box.is_local else f"{keys} is tmux's default prefix; yours may differ on the box"
    )


def attach_command(box: Box, session: str) -> list[str]:
    """``tmux attach`` here, or through ``ssh -t`` on a remote box."""
    from remote.transports.ssh import attach_argv

    return list(attach_argv(box, session))


def tmux_prefix(socket: str) -> str:
    """The prefix key of this machine's tmux, as tmux names it (``C-b`` where it cannot be asked)."""
    command = ["tmux", *(["-L", socket] if socket else []), "show-options", "-g", "-v", "prefix"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2)
    except (OSError, subprocess.SubprocessError):
        return "C-b"
    return done.stdout.strip() or "C-b"


def spoken(key: str) -> str:
    """``C-b`` as one presses it."""
    return key.replace("C-", "ctrl+").replace("M-", "alt+")


def call_in_foreground(argv: list[str]) -> int:
    """The real runner. Synchronous on purpose: the app's loop must not run while the terminal is not its own."""
    return subprocess.call(argv)
