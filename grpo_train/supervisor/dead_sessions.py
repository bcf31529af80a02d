"""Our tmux sessions of a root in which everything has ended. Torch-free."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from grpo_train.run_dir.sessions import OUR_OPTION, ROOT_OPTION, root_mark

TMUX_S = 20.0


@dataclass(frozen=True)
class DeadSession:
    """A session that shows the last output of a command."""

    name: str
    id: str
    """Of the tmux server, which gives none twice."""


def dead_sessions(root: Path) -> list[DeadSession]:
    """Sessions that were started for this root and have no live pane; none without tmux or its server."""
    panes: dict[DeadSession, bool] = {}
    row = f"#{{session_id}} #{{pane_dead}}#{{{OUR_OPTION}}} #{{{ROOT_OPTION}}} #{{session_name}}"
    shown = _tmux("list-panes", "-a", "-F", row)
    for line in shown.splitlines():
        fields = line.split(" ", 3)
        if len(fields) == 4 and fields[2] == root_mark(root):
            session = DeadSession(fields[3], fields[0])
            panes[session] = panes.get(session, True) and fields[1] == "11"
    return [session for session, is_dead in panes.items() if is_dead]


def end_sessions(root: Path, chosen: Iterable[DeadSession]) -> list[DeadSession]:
    """End sessions that are still dead; returns them."""
    still = set(dead_sessions(root))
    ended = [session for session in chosen if session in still]
    for session in ended:
        _tmux("kill-session", "-t", session.id)
    return ended


def _tmux(*arguments: str) -> str:
    if not shutil.which("tmux"):
        return ""
    try:
        done = subprocess.run(
            ["tmux", *arguments], capture_output=True, text=True, timeout=TMUX_S, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout
