"""tmux sessions of ours: names, marks, environment, and the calls that start one. Standard library only.

A session of ours depends neither on the user's options nor on who started the tmux server: the call that starts it sets
the options that would end it, and its command has the environment that we give it and nothing of the server's.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import socket
import struct
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from grpo_train.run_dir.processes import start_ticks

RUN_OPTION = "@grpo_run"
"""User option with the run that a session belongs to (tmux does not accept every run name as a session name)."""
OUR_OPTION = "@grpo"
"""User option set on every session that we start."""
ROOT_OPTION = "@grpo_root"
"""User option with the root (see :func:`root_mark`): another root may have a run of the same name."""
STARTED_OPTION = "@grpo_started"
"""User option with the pane and the process that we started, ``%PANE,PID,START_TICKS``: users may add panes of their
own. Sessions of older versions have none."""
EXECUTE = ("/bin/sh", "-c", 'exec "$@"', "sh")
"""Executes its arguments; unlike tmux, it prints why a command cannot be executed, and exits with 126 or 127."""
_IN_ENVIRONMENT = (
    "/bin/sh",
    "-c",
    'exec /usr/bin/env -i TERM="$TERM" TMUX="$TMUX" TMUX_PANE="$TMUX_PANE" /bin/sh -c \'. "$0"; exec "$@"\' "$@"',
    "sh",
)
"""Executes its arguments but the first, a file of :func:`write_environment`, in the environment of that file alone."""
_OF_TMUX = ("TERM", "TMUX", "TMUX_PANE")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


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


def write_environment(variables: Mapping[str, str]) -> Path:
    """Write the environment of a command to a private file, which the command removes when it starts.

    tmux's command line would show the values (a proxy's password) to every account for as long as its server runs.
    What is not a variable (a function that bash exported) is left out. Raises OSError.
    """
    given = {name: value for name, value in variables.items() if _VARIABLE.fullmatch(name) and name not in _OF_TMUX}
    lines = ['rm -f "$0"', *(f"export {name}={shlex.quote(value)}" for name, value in given.items())]
    descriptor, path = tempfile.mkstemp(prefix="grpo-environment-")
    with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write("\n".join(lines) + "\n")
    return Path(path)


def new_session(
    name: str,
    argv: Sequence[str],
    directory: str,
    environment: Path,
    variables: Mapping[str, str],
    marks: Mapping[str, str],
    *,
    keep: bool = True,
) -> list[str]:
    """Arguments of the tmux call that starts a detached session and prints what :func:`claim` takes.

    ``environment``: file of :func:`write_environment`. ``variables``: for panes that users add. ``marks``: user options
    of the session. ``keep``: the pane stays when its command has ended.
    """
    command = [
        *("new-session", "-d", "-P", "-F", "#{session_id} #{pane_id} #{pane_pid}"),
        *("-s", name, "-x", "200", "-y", "50", "-c", no_format(directory)),
        *(f"-e{key}={value}" for key, value in variables.items()),
        *(*_IN_ENVIRONMENT, str(environment), *argv),
    ]
    target = f"={name}:^"  # a hook of the user's may have added panes and windows already
    options = [
        ["-w", "-t", target, "remain-on-exit", "on" if keep else "off"],
        ["-s", "exit-unattached", "off"],
        *(["-t", target, key, value] for key, value in {"destroy-unattached": "off", **marks}.items()),
    ]
    return [*map(no_separator, command), *(word for option in options for word in (";", "set-option", *option))]


def claim(printed: str, *, keep: bool = True) -> list[str]:
    """Arguments of the tmux call that records what :func:`new_session` started; it fails where that is gone already."""
    session, pane, pid = printed.split()
    started = f"{pane},{pid},{start_ticks(int(pid)) or ''}"
    options = [
        ["-t", session, STARTED_OPTION, started],
        ["-p", "-t", pane, "remain-on-exit", "on" if keep else "off"],
        ["-w", "-u", "-t", pane, "remain-on-exit"],  # panes that users add are theirs
    ]
    return [word for option in options for word in ("set-option", *option, ";")][:-1]


def lost_server(socket_file: Path) -> int | None:
    """Pid of this account's tmux server that listens at this path although nobody reaches it there; None without one.

    Its file was removed, for example by a cleaner of ``/tmp``: its sessions run on, and tmux says that there is no
    server, or starts another one.
    """
    if sys.platform != "linux":
        return None
    reached = -1
    with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):  # nobody listens
        probe.connect(str(socket_file))
        reached = struct.unpack("3i", probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    bound = {str(socket_file), os.path.join(os.path.realpath(socket_file.parent), socket_file.name)}
    rows = [line.split(maxsplit=7) for line in Path("/proc/net/unix").read_text(errors="replace").splitlines()]
    listening = {f"socket:[{row[6]}]" for row in rows if len(row) == 8 and row[3] == "00010000" and row[7] in bound}
    processes = Path("/proc").glob("[0-9]*") if len(listening) > (reached > 0) else ()
    found = (int(process.name) for process in processes if _is_tmux(process, listening))
    return next((pid for pid in found if pid != reached), None)


def _is_tmux(process: Path, sockets: set[str]) -> bool:
    """Whether a process is a tmux of this account, with this view of the disk, that has one of these sockets open."""
    try:
        if process.stat().st_uid != os.geteuid() or not (process / "comm").read_text().startswith("tmux"):
            return False
        if os.readlink(process / "ns/mnt") != os.readlink("/proc/self/ns/mnt"):
            return False
        return any(os.readlink(file) in sockets for file in (process / "fd").iterdir())
    except OSError:  # it has ended, or cannot be looked into
        return False


def way_back(socket_file: Path, pid: int) -> tuple[str, str]:
    """What happened to a server that :func:`lost_server` found, and the command that makes its socket again."""
    folder = shlex.quote(str(socket_file.parent))
    directory = "" if socket_file.parent.is_dir() else f"mkdir -m 700 {folder} && "
    return f"the tmux server of this account (pid {pid}) runs, but its socket {socket_file} was removed", (
        f"{directory}kill -USR1 {pid}"
    )


def is_started(pane: str, pid: str, started: str) -> bool:
    """Whether a pane of a session of ours is the one that we started, with its process."""
    return not started or started.startswith(f"{pane},{pid},")
