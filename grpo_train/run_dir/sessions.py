"""Names and marks of a run's tmux session, for all who start or look for one. Standard library only."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

RUN_OPTION = "@grpo_run"
"""User option with the run that a session belongs to (tmux does not accept every run name as a session name)."""
OUR_OPTION = "@grpo"
"""User option set on every session that we start."""
ROOT_OPTION = "@grpo_root"
"""User option with the root (see :func:`root_mark`): another root may have a run of the same name."""
EXECUTE = ("/bin/sh", "-c", 'exec "$@"', "sh")
"""Executes its arguments; unlike tmux, it prints why a command cannot be executed, and exits with 126 or 127."""


def session_name(run: str) -> str:
    """A run's name as tmux accepts it; ``.`` and ``:`` separate windows and panes there."""
    return run.replace(".", "_").replace(":", "_")


def root_mark(root: Path) -> str:
    """A root as a session option: the same through every symbolic link, and free of special characters."""
    return hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]


def no_separator(argument: str) -> str:
    """Escape a trailing ``;``, which tmux reads as the end of the command."""
    return argument[:-1] + "\\;" if argument.endswith(";") else argument


def no_format(text: str) -> str:
    """Escape ``#``: tmux expands ``#{…}`` and, by a shell, ``#(…)`` in a start directory."""
    return text.replace("#", "##")
