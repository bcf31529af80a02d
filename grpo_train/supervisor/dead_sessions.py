"""Our tmux sessions of a root in which everything has ended. Torch-free."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_train.run_dir.sessions import OUR_OPTION, ROOT_OPTION, STARTED_OPTION, is_started, root_mark

TMUX_S = 20.0


@dataclass(frozen=True)
class DeadSession:
    """A session that shows the last output of a command."""

    name: str
    pane: str
    """Id of the pane that we started; the tmux server gives none twice."""


def dead_sessions(root: Path) -> list[DeadSession]:
    """Sessions that were started for this root and have no live pane; none without tmux or its server."""
    ours: list[DeadSession] = []
    alive: set[str] = set()
    row = (
        f"#{{pane_id}} #{{pane_pid}} d#{{pane_dead}}#{{{OUR_OPTION}}} s#{{{STARTED_OPTION}}} #{{{ROOT_OPTION}}} "
        "#{session_name}"
    )
    shown = _tmux("list-panes", "-a", "-F", row)
    for line in shown.splitlines():
        fields = line.split(" ", 5)
        if len(fields) == 6 and fields[4] == root_mark(root):
            pane, pid, state, started, _, name = fields
            if state != "d11":
                alive.add(name)
            elif is_started(pane, pid, started[1:]):
                ours.append(DeadSession(name, pane))
    return [session for session in ours if session.name not in alive]


def end_sessions(root: Path, chosen: Iterable[DeadSession]) -> list[DeadSession]:
    """End sessions that are still dead; returns them."""
    still = set(dead_sessions(root))
    ended = [session for session in chosen if session in still]
    for session in ended:
        _tmux("kill-pane", "-t", session.pane)
    return ended


def _tmux(*arguments: str) -> str:
    if not shutil.which("tmux"):
        return ""
    try:
        done = subprocess.run(
            ["tmux", *arguments], capture_output=True, text=True, timeout=TMUX_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):  # a server that hangs
        return ""
    return done.stdout
