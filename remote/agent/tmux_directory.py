"""The directory of tmux's sockets: tmux refuses one of another account, or open to others, in words that hide why."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from grpo_train.run_dir.owners import account
from remote.protocol import RemoteError

_OPEN_TO_OTHERS = 0o007


def tmux_directory() -> Path:
    """Where tmux keeps the sockets of this account."""
    chosen = Path(os.environ.get("TMUX_TMPDIR") or "/tmp")
    return (chosen if chosen.is_dir() else Path("/tmp")) / f"tmux-{os.geteuid()}"


def socket_path(name: str) -> Path:
    """Path of the socket of this name ("" = tmux's default) of this account."""
    return tmux_directory() / (name or "default")


def require_own_directory() -> None:
    """Raise RemoteError ``tmux`` for a directory that tmux refuses, with the command that fixes it."""
    folder = tmux_directory()
    try:
        facts = os.lstat(folder)
    except OSError:
        return  # tmux creates it
    place = shlex.quote(str(folder))
    if owner := (account(facts.st_uid) if facts.st_uid != os.geteuid() else ""):
        message = f"tmux's directory {folder} belongs to {owner}, and {account()} may not use it"
        raise RemoteError("tmux", message, f"on the box: sudo rm -r {place}")
    if not stat.S_ISDIR(facts.st_mode):
        raise RemoteError("tmux", f"{folder} is not a directory, and tmux needs one", f"on the box: rm {place}")
    if facts.st_mode & _OPEN_TO_OTHERS:
        hint = f"on the box: chmod 700 {place}"
        raise RemoteError("tmux", f"tmux's directory {folder} is open to other accounts", hint)
