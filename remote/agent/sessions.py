"""tmux through libtmux: start, list, capture and remove sessions. libtmux is imported on first use.

Traps respected here (each measured): without a UTF-8 locale libtmux breaks, so the agent sets one; tmux matches
targets by pattern unless they begin with ``=`` or are ids; an argument that ends in ``;`` ends a command; a command
that ends at once takes its session along unless ``remain-on-exit`` is set in the same breath.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any

from remote.agent.context import Place
from remote.protocol import RemoteError

RUN_OPTION = "@grpo_run"
"""A session's user option that names the run it works for (its name may have had to be changed)."""
OUR_OPTION = "@grpo"
"""Set on every session that an agent started, whatever it works for."""
ROOT_OPTION = "@grpo_root"
"""Which root that agent worked in, see :func:`root_mark`: another root may hold a run of the same name."""
_FORMAT = (
    "#{session_id} #{pane_id} #{session_created} #{session_attached} #{pane_dead} s#{pane_dead_status} "
    "g#{pane_dead_signal} #{pane_pid} r#{@grpo_run} m#{@grpo} o#{@grpo_root} #{session_name}"
)
ANOTHER_ROOT = "(another root)"
_importing = threading.Lock()
_NO_SERVER = ("no server running", "error connecting", "server exited", "lost server")


def session_name(run: str) -> str:
    """The run's name as tmux accepts it: ``.`` and ``:`` separate windows and panes there."""
    return run.replace(".", "_").replace(":", "_")


def root_mark(root: Path) -> str:
    """A root as a session's option holds it: the same through every symbolic link, and without odd characters."""
    return hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:16]


def no_tmux() -> RemoteError:
    return RemoteError("no_tmux", "tmux is not installed on this box", "on the box: sudo apt-get install -y tmux")


class Sessions:
    """The sessions of one tmux socket, as an agent of one root sees them. Every call asks tmux anew: a server that
    died or a session that went is no special case."""

    def __init__(self, place: Place) -> None:
        self._socket_name = place.settings.tmux_socket
        self._root = root_mark(place.root)

    def require(self) -> None:
        """Raises RemoteError ``no_tmux`` where there is none."""
        if not shutil.which("tmux"):
            raise no_tmux()

    def _tmux(self, *arguments: str) -> list[str]:
        """Run one tmux command; its output's lines. Raises RemoteError ``tmux`` with its words."""
        self.require()
        with _importing:  # its modules import each other: two threads at once would find them half made
            from libtmux.exc import LibTmuxException
            from libtmux.server import Server
        try:
            done = Server(socket_name=self._socket_name or None).cmd(*arguments)
        except LibTmuxException as error:
            raise RemoteError("tmux", f"tmux failed: {error}") from error
        if done.returncode:
            raise RemoteError("tmux", f"tmux {arguments[0]}: {' '.join(done.stderr) or done.returncode}")
        return list(done.stdout)

    def rows(self) -> list[dict[str, Any]]:
        """One row a session, the newest first: name, run, created, attached, dead, exit_status, signal, pid, marked
        (started by an agent of this root), id, pane. None without a server.

        The run of a session that belongs to another root is no name of a run here: ``NAME (another root)``.
        """
        try:
            lines = self._tmux("list-panes", "-a", "-F", _FORMAT)
        except RemoteError as error:
            if any(words in error.message for words in _NO_SERVER):
                return []
            raise
        found = self._parse(lines)
        if any(_is_unreaped(row) for row in found.values()):
            # tmux 3.3a sometimes misses that a pane's child has ended, until another child ends: give it one
            self._tmux("run-shell", "true")
            found = self._parse(self._tmux("list-panes", "-a", "-F", _FORMAT))
        return sorted(found.values(), key=lambda row: (-row["created"], row["name"]))

    def _parse(self, lines: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for line in lines:
            fields = line.split(" ", 11)
            if len(fields) == 12:
                found.setdefault(fields[0], _row(fields, self._root))  # the first pane speaks for its session
        return found

    def find(self, name: str) -> dict[str, Any] | None:
        """The session of exactly that name."""
        return next((row for row in self.rows() if row["name"] == name), None)

    def start(
        self, name: str, argv: list[str], directory: Path, environment: dict[str, str], run: str
    ) -> dict[str, Any]:
        """Start a detached session that runs ``argv`` and stays, dead, when that ends.

        A dead session of the name is removed first. Raises RemoteError ``session_live`` when a live one has it.
        """
        self.make_room(name)
        variables = [f"-e{key}={value}" for key, value in environment.items()]
        target = f"={name}:"
        command = [
            *("new-session", "-d", "-s", name, "-x", "200", "-y", "50", "-c", _no_format(str(directory))),
            *variables,
            shlex.join(argv),
        ]
        keep = ["set-option", "-w", "-t", target, "remain-on-exit", "on"]
        options = {RUN_OPTION: run, OUR_OPTION: "1", ROOT_OPTION: self._root}
        marks = [word for key, value in options.items() for word in (";", "set-option", "-t", target, key, value)]
        self._start_server_and(*map(_no_separator, command), ";", *keep, *marks)
        return self.find(name) or {"name": name}

    def _start_server_and(self, *arguments: str) -> None:
        """Run a command that may start the server; one that is just ending, its last session gone, is waited for."""
        for attempt in range(10):
            try:
                self._tmux(*arguments)
                return
            except RemoteError as error:
                if attempt == 9 or not any(words in error.message for words in _NO_SERVER):
                    raise
                time.sleep(0.1)

    def make_room(self, name: str) -> None:
        """Remove a dead session of the name; raises RemoteError ``session_live`` when it lives."""
        old = self.find(name)
        if old is None:
            return
        if not old["dead"]:
            raise RemoteError(
                "session_live",
                f"the tmux session '{name}' is alive already" + of_whom(old),
                "attach to it, wait until it ends, or stop it first",
            )
        self.remove(old)

    def remove(self, row: dict[str, Any]) -> None:
        """End a session of :meth:`rows`, by its id: a name would be matched as a pattern."""
        self._tmux("kill-session", "-t", row["id"])

    def capture(self, name: str, lines: int) -> str:
        """The last lines of a session's screen and history. Raises RemoteError ``no_session``."""
        row = self.find(name)
        if row is None:
            have = ", ".join(other["name"] for other in self.rows()) or "none"
            raise RemoteError("no_session", f"there is no tmux session '{name}' on this box (there are: {have})")
        text = self._tmux("capture-pane", "-p", "-J", "-t", row["pane"], "-S", f"-{lines}")
        squeezed = re.sub(r"\n{4,}", "\n\n", "\n".join(text).rstrip("\n"))  # a tall pane with little in it
        return "\n".join(squeezed.split("\n")[-lines:])


def of_whom(row: dict[str, Any]) -> str:
    """What to add where a session stands in the way: whether another root's."""
    return " (of a run of another root)" if row["run"].endswith(ANOTHER_ROOT) else ""


def _is_unreaped(row: dict[str, Any]) -> bool:
    """Dead, but how is not known, and the process table still has it."""
    unknown = row["dead"] and row["exit_status"] is None and not row["signal"]
    return bool(unknown and row["pid"] and Path(f"/proc/{row['pid']}").exists())


def _row(fields: list[str], root: str) -> dict[str, Any]:
    number, run, marked, of_root = fields[6][1:], fields[8][1:], fields[9] != "m", fields[10][1:]
    if of_root not in ("", root):  # an agent of an older version did not say
        run, marked = f"{run} {ANOTHER_ROOT}".lstrip(), False
    return {
        "id": fields[0],
        "pane": fields[1],
        "created": int(fields[2]),
        "attached": int(fields[3]),
        "dead": fields[4] == "1",
        "exit_status": int(fields[5][1:]) if fields[5][1:].isdigit() else None,
        "signal": _signal_name(number),
        "pid": int(fields[7]) if fields[7].isdigit() else None,
        "run": run,
        "marked": marked,
        "name": fields[11],
    }


def _signal_name(number: str) -> str:
    if not number.isdigit():
        return number
    try:
        return signal.Signals(int(number)).name
    except ValueError:
        return number


def _no_separator(argument: str) -> str:
    """tmux takes an argument's last ``;`` for the end of a command."""
    return argument[:-1] + "\\;" if argument.endswith(";") else argument


def _no_format(text: str) -> str:
    """tmux expands ``#{…}`` and ``#(…)``, the latter by a shell, in a start directory."""
    return text.replace("#", "##")
