"""tmux sessions through libtmux (imported on first use): start, list, capture, remove, and use as terminals.

Pitfalls handled here, each observed: libtmux fails without a UTF-8 locale, so the agent sets one; tmux matches targets
as patterns unless they start with ``=`` or are ids; an argument that ends in ``;`` ends the command; a session whose
command exits at once disappears unless ``remain-on-exit`` is set by the same tmux call; a command given as one string
is run by the account's login shell (fish and tcsh quote differently), several arguments are executed as they are; users
split the windows of our sessions, so only the pane and process that were started are ours.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import signal
import stat
import threading
import time
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias

from grpo_train.run_dir.credentials import find_secret
from grpo_train.run_dir.machine import account
from grpo_train.run_dir.processes import start_ticks
from grpo_train.run_dir.sessions import (
    OUR_OPTION,
    ROOT_OPTION,
    RUN_OPTION,
    STARTED_OPTION,
    claim,
    is_started,
    lost_server,
    new_session,
    no_separator,
    root_mark,
    way_back,
    write_environment,
)
from remote.agent.box import BoxContext, clean_environment
from remote.agent.once import RequestRecord
from remote.protocol import RemoteError
from remote.protocol.jobs import OpenShellReply, OpenShellRequest, SendLineReply, SendLineRequest

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


KEY_OPTION = "@grpo_key"
"""User option with the idempotency key of the request that started the session."""
Session: TypeAlias = dict[str, Any]
"""A row of :meth:`Sessions.rows`."""
_FORMAT = (
    "#{session_id} #{pane_id} #{session_created} #{session_attached} #{pane_dead} s#{pane_dead_status} "
    "g#{pane_dead_signal} #{pane_pid} r#{@grpo_run} m#{@grpo} o#{@grpo_root} k#{@grpo_key} p#{@grpo_started} "
    "#{session_name}"
)
_FIELDS = 14
OUR_OPTIONS = (RUN_OPTION, OUR_OPTION, ROOT_OPTION, KEY_OPTION, STARTED_OPTION)
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
            if not stderr_reports_no_server(reason):
                raise RemoteError("tmux", f"tmux {arguments[0]}: {reason}")
            self.require_none_lost()
            raise NoServerError("tmux", f"tmux {arguments[0]}: {reason}")
        return list(done.stdout)

    def require_none_lost(self) -> None:
        """Raise RemoteError ``tmux`` for a server whose socket was removed, with the command that makes it again."""
        file = socket_path(self._socket_name)
        if (pid := lost_server(file)) is not None:
            message, command = way_back(file, pid)
            raise RemoteError("tmux", message, f"on the box: {command}")

    def rows(self) -> list[dict[str, Any]]:
        """One row per session, newest first; [] without a tmux server.

        Keys: name, run, created, attached, dead, exit_status, signal, pid, start (ticks after boot; None = ended),
        marked (started by an agent of this root), other_root (by an agent of another root; ``run`` then says so, too),
        key (of the request), id, pane, shared (there are panes that we did not start). In a session of ours, these are
        of the pane that was started: once it is closed, or runs something else, ``pane`` is "" and the session dead.
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
        panes = [fields for line in lines if len(fields := line.split(" ", _FIELDS - 1)) == _FIELDS]
        sessions: dict[str, list[list[str]]] = {}
        for fields in panes:
            sessions.setdefault(fields[0], []).append(fields)
        return {session: _row(own, panes, self._root) for session, own in sessions.items()}

    def find(self, name: str) -> dict[str, Any] | None:
        """The session with exactly this name."""
        return next((row for row in self.rows() if row["name"] == name), None)

    def start(self, name: str, argv: list[str], directory: Path, box: BoxContext, run: str = "", key: str = "") -> None:
        """Start a detached session that executes ``argv`` and remains, dead, after it exits.

        Without ``argv`` it runs the account's login shell, and ends with it.

        A dead session of the same name is removed first. Does nothing when a request with this key has started one: an
        agent was killed, but not its tmux command. Raises RemoteError ``session_live`` when another one is alive, and
        where the session ended as soon as it was started.
        """
        self.make_room(name)
        marks = {RUN_OPTION: run, KEY_OPTION: key, OUR_OPTION: "1", ROOT_OPTION: self._root}
        variables = box.session_environment()
        environment = write_environment({**clean_environment(os.environ), **variables})
        command = argv or [os.environ.get("SHELL") or "/bin/sh", "-l"]
        keep = bool(argv)
        call = new_session(name, command, str(directory), environment, variables, marks, keep=keep)
        try:
            self._tmux(*claim(self._start(call), keep=keep))
        except RemoteError:
            if not self.has_key(key):
                environment.unlink(missing_ok=True)
                raise

    def _start(self, call: list[str]) -> str:
        for _ in range(START_ATTEMPTS - 1):  # a server that is just exiting is waited for
            try:
                return self._tmux(*call)[0]
            except NoServerError:
                time.sleep(0.1)
        return self._tmux(*call)[0]

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
        """Remove what was started in a session, and with it the session, unless it has panes of the user's."""
        if row["pane"]:
            self._tmux("kill-pane", "-t", row["pane"])

    def make_room(self, name: str) -> None:
        """
        Remove a dead session of this name; one with panes of the user's becomes ``NAME_before``, and is theirs.

        Raises RemoteError ``session_live`` when it is alive or was started by the user.
        """
        row = self.require_not_live(name)
        if row is None:
            return
        self.remove(row)
        if row["shared"]:
            taken = {other["name"] for other in self.rows()}
            names = (f"{name}_before{number or ''}" for number in itertools.count())
            unmark = [word for mark in OUR_OPTIONS for word in ("set-option", "-u", "-t", row["id"], mark, ";")]
            self._tmux(*unmark, "rename-session", "-t", row["id"], next(new for new in names if new not in taken))

    def require_not_live(self, name: str) -> dict[str, Any] | None:
        """The dead session of this name, if any. Raises RemoteError ``session_live`` where it cannot be replaced."""
        row = self.find(name)
        if row is not None and not row["dead"]:
            owner = " (started for another root)" if row["other_root"] else ""
            raise RemoteError(
                "session_live",
                f"the tmux session '{name}' is still alive{owner}",
                "attach to it, wait until it ends, or stop it first",
            )
        if row is not None and not (row["marked"] or row["other_root"]):
            raise RemoteError(
                "session_live",
                f"grpo-tui did not start the tmux session '{name}'",
                f"close it, or rename it: tmux rename-session -t {shlex.quote(f'={name}')} NAME",
            )
        return row

    def require_row(self, name: str) -> Session:
        """The session of this name. Raises RemoteError ``no_session``."""
        row = self.find(name)
        if row is None:
            self.require_none_lost()
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
        if not row["pane"]:
            raise RemoteError("no_session", f"what grpo-tui started in the tmux session '{name}' was closed")
        text = self._tmux("capture-pane", "-p", "-J", "-t", row["pane"], "-S", f"-{lines}")
        squeezed = re.sub(r"\n{4,}", "\n\n", "\n".join(text).rstrip("\n"))  # a mostly empty pane
        return "\n".join(squeezed.split("\n")[-lines:])

    def output(self, name: str, count: int) -> list[str]:
        """The last lines that the command of a dead session printed, without tmux's own last line; [] once closed."""
        lines = self.capture(name, count + 5).split("\n") if self.require_row(name)["pane"] else [""]
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


def _row(own: list[list[str]], panes: list[list[str]], root: str) -> dict[str, Any]:
    """The row of a session from the fields of its panes, and of all panes of the server: users move panes, too."""
    first = own[0]
    run, marked, session_root, started = first[8][1:], first[9] != "m", first[10][1:], first[12][1:]
    other_root = session_root not in ("", root)  # agents of older versions did not set it
    if other_root:
        run, marked = f"{run} (another root)".lstrip(), False
    if started:
        pane = next((fields for fields in panes if is_started(fields[1], fields[7], started)), None)
    else:
        pane = min(own, key=lambda fields: int(fields[1][1:]))  # the session began with it
    row = {
        "id": first[0],
        "pane": "",
        "created": int(first[2]),
        "attached": int(first[3]),
        "dead": True,
        "exit_status": None,
        "signal": "",
        "pid": None,
        "start": None,
        "run": run,
        "marked": marked,
        "other_root": other_root,
        "key": first[11][1:],
        "shared": any(fields is not pane for fields in own),
        "name": first[13],
    }
    if pane is None:
        return row
    dead, pid, ticks = pane[4] == "1", int(pane[7]) if pane[7].isdigit() else None, started.rpartition(",")[2]
    start = int(ticks) if ticks else start_ticks(pid or 0)
    return {
        **row,
        "pane": pane[1],
        "dead": dead,
        "exit_status": int(pane[5][1:]) if pane[5][1:].isdigit() else None,
        "signal": _signal_name(pane[6][1:]),
        "pid": pid,
        "start": start,
    }


def _signal_name(value: str) -> str:
    try:
        return signal.Signals(int(value)).name
    except ValueError:
        return value


SHELL_SESSION = "shell"


def open_shell(box: BoxContext, request: OpenShellRequest, record: RequestRecord) -> OpenShellReply:
    """Open a session named ``shell``, ``shell_2`` …, which ends with its shell. Raises RemoteError."""
    sessions = Sessions(box)
    sessions.require()
    if record.key and (row := sessions.with_key(record.key)) is not None:
        return {"session": row["name"]}
    taken = {row["name"] for row in sessions.rows()}
    name = next(name for name in map(_name, count(1)) if name not in taken)
    record.begin()
    folder = box.repo if box.repo is not None and box.repo.is_dir() else Path.home()
    sessions.start(name, [], folder, box, key=record.key)
    return {"session": name}


def _name(number: int) -> str:
    return SHELL_SESSION if number == 1 else f"{SHELL_SESSION}_{number}"


def send_line(box: BoxContext, request: SendLineRequest, record: RequestRecord) -> SendLineReply:
    """Type a line and Enter into a session.

    Raises RemoteError: ``no_session``; ``secret`` for a line that holds one, as other accounts of the box could read
    it in tmux's arguments; ``not_known`` where an agent was killed while it typed.
    """
    if record.found is not None:
        message = f"the agent was ended while it typed into '{request.session}': the line may have arrived"
        raise RemoteError("not_known", message, "look at the session before you send it again")
    if find_secret(request.line):
        message = "the line seems to hold a secret, which every account of the box could read in the process list"
        raise RemoteError("secret", message, "attach to the session and type it there")
    sessions = Sessions(box)
    row = sessions.require_live(request.session)
    record.begin()
    sessions.type_line(row, request.line)
    return {"session": row["name"]}
