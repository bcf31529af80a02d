"""tmux sessions through libtmux (imported on first use): start, list, capture, remove.

Pitfalls handled here, each observed: libtmux fails without a UTF-8 locale, so the agent sets one; tmux matches targets
as patterns unless they start with ``=`` or are ids; an argument that ends in ``;`` ends the command; a session whose
command exits at once disappears unless ``remain-on-exit`` is set by the same tmux call; a command given as one string
is run by the account's login shell (fish and tcsh quote differently), several arguments are executed as they are.
"""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from pathlib import Path
from typing import Any, TypeAlias

from grpo_train.run_dir.sessions import (
    EXECUTE,
    OUR_OPTION,
    ROOT_OPTION,
    RUN_OPTION,
    no_format,
    no_separator,
    root_mark,
)
from remote.agent.context import BoxContext
from remote.agent.tmux_directory import require_own_directory
from remote.protocol import RemoteError

KEY_OPTION = "@grpo_key"
"""User option with the idempotency key of the request that started the session."""
Session: TypeAlias = dict[str, Any]
"""A row of :meth:`Sessions.rows`."""
_FORMAT = (
    "#{session_id} #{pane_id} #{session_created} #{session_attached} #{pane_dead} s#{pane_dead_status} "
    "g#{pane_dead_signal} #{pane_pid} r#{@grpo_run} m#{@grpo} o#{@grpo_root} k#{@grpo_key} #{session_name}"
)
START_ATTEMPTS = 10
_importing = threading.Lock()


class NoServerError(RemoteError):
    """No tmux server is running on this socket, or it just exited."""


def no_tmux() -> RemoteError:
    return RemoteError("no_tmux", "tmux is not installed on this box", "on the box: sudo apt-get install -y tmux")


class Sessions:
    """The sessions of one tmux socket, as an agent of one root sees them; nothing is cached between calls."""

    def __init__(self, box: BoxContext) -> None:
        self._socket_name = box.settings.tmux_socket
        self._root = root_mark(box.root)

    def require(self) -> None:
        """Raise RemoteError: ``no_tmux`` when tmux is not installed, ``tmux`` when it cannot use its directory."""
        if not shutil.which("tmux"):
            raise no_tmux()
        require_own_directory()

    def _tmux(self, *arguments: str) -> list[str]:
        """Run one tmux command and return its output lines. Raises RemoteError ``tmux``, NoServerError."""
        self.require()
        with _importing:  # its modules import each other: a second thread would find them half initialized
            from libtmux.exc import LibTmuxException, TmuxCommandNotFound
            from libtmux.server import Server
        try:
            done = Server(socket_name=self._socket_name or None).cmd(*arguments)
        except TmuxCommandNotFound as error:
            raise no_tmux() from error
        except LibTmuxException as error:
            raise RemoteError("tmux", f"tmux failed: {error}") from error
        if done.returncode:
            reason = " ".join(done.stderr) or f"exit code {done.returncode}"
            kind = NoServerError if stderr_reports_no_server(reason) else RemoteError
            raise kind("tmux", f"tmux {arguments[0]}: {reason}")
        return list(done.stdout)

    def rows(self) -> list[dict[str, Any]]:
        """One row per session, newest first; [] without a tmux server.

        Keys: name, run, created, attached, dead, exit_status, signal, pid, marked (started by an agent of this root),
        other_root (started by an agent of another root; ``run`` then says so, too), key (of the request), id, pane.
        """
        try:
            lines = self._tmux("list-panes", "-a", "-F", _FORMAT)
        except NoServerError:
            return []
        found = self._parse(lines)
        if any(_is_unreaped(row) for row in found.values()):
            # tmux 3.3a can miss the exit of a pane's process until another child exits: give it one
            self._tmux("run-shell", "true")
            found = self._parse(self._tmux("list-panes", "-a", "-F", _FORMAT))
        return sorted(found.values(), key=lambda row: (-row["created"], row["name"]))

    def _parse(self, lines: list[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for line in lines:
            fields = line.split(" ", 12)
            if len(fields) == 13:
                found.setdefault(fields[0], _row(fields, self._root))  # the first pane represents its session
        return found

    def find(self, name: str) -> dict[str, Any] | None:
        """The session with exactly this name."""
        return next((row for row in self.rows() if row["name"] == name), None)

    def start(
        self, name: str, argv: list[str], directory: Path, environment: dict[str, str], run: str, key: str = ""
    ) -> None:
        """Start a detached session that executes ``argv`` and remains, dead, after it exits.

        Without ``argv`` it runs the account's shell, as tmux starts it, and ends with it.

        A dead session of the same name is removed first. Does nothing when a request with this key has started one: an
        agent was killed, but not its tmux command. Raises RemoteError ``session_live`` when another one is alive.
        """
        try:
            self._start(name, argv, directory, environment, {RUN_OPTION: run, KEY_OPTION: key})
        except RemoteError:
            if not self.has_key(key):
                raise

    def _start(
        self, name: str, argv: list[str], directory: Path, environment: dict[str, str], options: dict[str, str]
    ) -> None:
        self.make_room(name)
        variables = [f"-e{key}={value}" for key, value in environment.items()]
        target = f"={name}:"
        command = [
            *("new-session", "-d", "-s", name, "-x", "200", "-y", "50", "-c", no_format(str(directory))),
            *variables,
            *([*EXECUTE, *argv] if argv else []),
        ]
        keep = ["set-option", "-w", "-t", target, "remain-on-exit", "on" if argv else "off"]
        options = {**options, OUR_OPTION: "1", ROOT_OPTION: self._root}
        marks = [word for key, value in options.items() for word in (";", "set-option", "-t", target, key, value)]
        for attempt in range(START_ATTEMPTS):  # a server that is just exiting is waited for
            try:
                self._tmux(*map(no_separator, command), ";", *keep, *marks)
                return
            except NoServerError:
                if attempt == START_ATTEMPTS - 1:
                    raise
                time.sleep(0.1)

    def has_key(self, key: str) -> bool:
        """Whether a request with this key started a session."""
        try:
            return bool(key) and key in self._tmux("list-panes", "-a", "-F", f"#{{{KEY_OPTION}}}")
        except NoServerError:
            return False

    def with_key(self, key: str) -> dict[str, Any] | None:
        """The session that a request with this key started."""
        return next((row for row in self.rows() if row["key"] == key and row["marked"]), None)

    def remove(self, row: Session) -> None:
        """Remove a session."""
        self._tmux("kill-session", "-t", row["id"])  # a name would be matched as a pattern

    def make_room(self, name: str) -> None:
        """Remove a dead session of this name. Raises RemoteError ``session_live`` when it is alive."""
        row = self.require_not_live(name)
        if row is not None:
            self.remove(row)

    def require_not_live(self, name: str) -> dict[str, Any] | None:
        """The dead session of this name, if any. Raises RemoteError ``session_live`` when it is alive."""
        row = self.find(name)
        if row is not None and not row["dead"]:
            owner = " (started for another root)" if row["other_root"] else ""
            raise RemoteError(
                "session_live",
                f"the tmux session '{name}' is still alive{owner}",
                "attach to it, wait until it ends, or stop it first",
            )
        return row

    def require_row(self, name: str) -> Session:
        """The session of this name. Raises RemoteError ``no_session``."""
        row = self.find(name)
        if row is None:
            names = ", ".join(other["name"] for other in self.rows()) or "none"
            raise RemoteError("no_session", f"no tmux session '{name}' on this box (sessions: {names})")
        return row

    def require_live(self, name: str) -> Session:
        """The live session of this name. Raises RemoteError ``no_session``."""
        row = self.require_row(name)
        if row["dead"]:
            raise RemoteError("no_session", f"the command of the tmux session '{name}' has ended")
        return row

    def type_line(self, row: Session, line: str) -> None:
        """Type a line into a session, and Enter."""
        keys = ["send-keys", "-t", row["pane"]]
        self._tmux(*keys, "-l", "--", no_separator(line), ";", *keys, "Enter")

    def capture(self, name: str, lines: int) -> str:
        """The last lines of a session's screen and history. Raises RemoteError ``no_session``."""
        row = self.require_row(name)
        text = self._tmux("capture-pane", "-p", "-J", "-t", row["pane"], "-S", f"-{lines}")
        squeezed = re.sub(r"\n{4,}", "\n\n", "\n".join(text).rstrip("\n"))  # a mostly empty pane
        return "\n".join(squeezed.split("\n")[-lines:])

    def output(self, name: str, count: int) -> list[str]:
        """The last lines that the command of a dead session printed, without tmux's own last line."""
        lines = self.capture(name, count + 5).split("\n")
        if lines[-1].startswith("Pane is dead"):
            lines.pop()
        return [line for line in (line.rstrip() for line in lines) if line][-count:]


def stderr_reports_no_server(text: str) -> bool:
    """Whether tmux failed because its server is not running, or has no session left; its words are the only sign."""
    signs = ("no server running", "error connecting", "server exited", "lost server", "no current target")
    return any(words in text for words in signs)


def _is_unreaped(row: dict[str, Any]) -> bool:
    """Whether a pane is dead with an unknown exit status while its process is still in the process table."""
    unknown = row["dead"] and row["exit_status"] is None and not row["signal"]
    return bool(unknown and row["pid"] and Path(f"/proc/{row['pid']}").exists())


def _row(fields: list[str], root: str) -> dict[str, Any]:
    run, marked, session_root = fields[8][1:], fields[9] != "m", fields[10][1:]
    other_root = session_root not in ("", root)  # agents of older versions did not set it
    if other_root:
        run, marked = f"{run} (another root)".lstrip(), False
    return {
        "id": fields[0],
        "pane": fields[1],
        "created": int(fields[2]),
        "attached": int(fields[3]),
        "dead": fields[4] == "1",
        "exit_status": int(fields[5][1:]) if fields[5][1:].isdigit() else None,
        "signal": _signal_name(fields[6][1:]),
        "pid": int(fields[7]) if fields[7].isdigit() else None,
        "run": run,
        "marked": marked,
        "other_root": other_root,
        "key": fields[11][1:],
        "name": fields[12],
    }


def _signal_name(value: str) -> str:
    try:
        return signal.Signals(int(value)).name
    except ValueError:
        return value
