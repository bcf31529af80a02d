"""What one box needs of the system's ``ssh``: its options, a private folder, and one configuration file.

The private directory (0700) lives as long as the client: the control socket, the questions' socket, the host keys that
ssh may read and add to, and a configuration for jump hosts. Nothing secret is written to it.
"""

from __future__ import annotations

import atexit
import base64
import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from remote.base import Refused
from remote.boxes import Box
from remote.transports.identities import HostKeys, KnownHostLine, marked, renamed
from remote.transports.identities import fingerprint as fingerprint_of
from remote.transports.questions import QuestionSocket
from remote.transports.ssh_config import Configuration, parse_jump, read_configuration
from remote.transports.transport import CONNECT_S

LONGEST = 70
"""A Unix socket's path has at most 104 characters, and ssh adds 17 to that of a control socket."""
PREFIX = "grpo-ssh-"
_cleaned = threading.Lock()


def private_folder() -> Path:
    """A new directory that only this user can enter; those of programs that were killed are removed."""
    places = [os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir(), "/tmp"]
    for place in places:
        if not place or len(place) > LONGEST - len(PREFIX) - 20 or not os.access(place, os.W_OK):
            continue
        with _cleaned:
            _remove_abandoned(Path(place))
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=place))
    raise Refused("no directory for ssh's control socket: set XDG_RUNTIME_DIR to a directory of this user")


def _remove_abandoned(place: Path) -> None:
    for folder in place.glob(f"{PREFIX}*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            if folder.lstat().st_uid == os.getuid():
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            pass  # another user's process


ALIVE_S = 5
CIPHERS = "^aes128-gcm@openssh.com,aes256-gcm@openssh.com"
"""Before the other defaults: processors have instructions for them, which take a quarter off the time of a copy."""
OLDEST = (8, 5)
"""Older versions do not mark what a server asks, so that a box could ask for the passphrase of a key."""


@dataclass(frozen=True)
class OpenSshClient:
    """An OpenSSH client."""

    path: str
    version: tuple[int, int]
    name: str
    """As ``ssh -V`` prints it: OpenSSH_9.2p1."""


@functools.cache
def find_program(path: str = "ssh") -> OpenSshClient | None:
    """The OpenSSH client on this machine, of any version; None without one."""
    found = shutil.which(path)
    if found is None:
        return None
    try:
        done = subprocess.run([found, "-V"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.match(r"OpenSSH\S*?_(\d+)\.(\d+)[^\s,]*", done.stderr or done.stdout)
    return OpenSshClient(found, (int(version[1]), int(version[2])), version[0]) if version else None


class BoxSsh:
    """One box's use of ssh, for all connections of one client."""

    def __init__(
        self, box: Box, program: OpenSshClient, *, host_keys_file: str | Path | None = None, config: str | None = None
    ) -> None:
        self.box = box
        self.program = program
        self.host_keys = HostKeys(host_keys_file)
        self.configuration = Configuration()
        self.resolved_in_s = 0.0
        self.folder = private_folder()
        self.questions = QuestionSocket(self.folder / "questions")
        self.log = self.folder / "log"
        os.mkfifo(self.log, 0o600)
        self.accepted: set[tuple[str, str]] = set()
        """(host, fingerprint) of host keys that the user accepted; stored once a connection has verified them."""
        self.passphrases: dict[str, str] = {}
        """Passphrases of key files by prompt, for this session."""
        self.asked = False
        """Whether a person was asked to log in, and no connection has succeeded since."""
        self._config = config
        self._ours: list[KnownHostLine] = []
        self._hops: list[tuple[str, Configuration]] = []
        self._users_master = False
        self._avoids_users_master = False
        self._write_askpass()
        _live[box.name] = self
        atexit.register(self.close)  # a program that crashes does not close its client

    # --------------------------------------------------------------------------------------------- configuration

    def resolve(self, closing: Callable[[], bool]) -> None:
        """Read the user's configuration and prepare the files. Raises Refused, and Unreachable when closing."""
        began = time.monotonic()
        if self.box.host.startswith("-") or not self.box.host:
            raise Refused(f"{self.box.host!r} is not a host name")
        self.configuration = self._ask_ssh([*self._target()], self.box.host, closing)
        self._hops = []
        for jump in self.configuration.one("proxyjump").split(","):
            user, host, port = parse_jump(jump)
            if host and not host.startswith("-"):
                options = [*(["-l", user] if user else []), *(["-p", str(port)] if port else [])]
                self._hops.append((host, self._ask_ssh(options, host, closing)))
        self._prepare_host_keys()
        path = self.configuration.one("controlpath")
        may_use_it = self.configuration.checks_host_keys and not self._avoids_users_master
        self._users_master = bool(path) and may_use_it and self._has_users_master()
        (self.folder / "config").write_text(self._private_config())
        (self.folder / "master").unlink(missing_ok=True)  # of an ssh that was killed; another could not be master
        self.resolved_in_s = time.monotonic() - began

    def _ask_ssh(self, options: list[str], host: str, closing: Callable[[], bool]) -> Configuration:
        command = [self.program.path, "-G", *(["-F", self._config] if self._config else []), *options, "--", host]
        return Configuration.parse(read_configuration(command, host, closing))

    def _target(self) -> list[str]:
        box = self.box
        options = [*(["-p", str(box.port)] if box.port else []), *(["-l", box.user] if box.user else [])]
        key = str(Path(box.key).expanduser())
        return options + (["-i", key, "-o", "IdentitiesOnly=yes"] if box.key else [])

    def _private_config(self) -> str:
        """Our options for jump hosts, for the box, then the user's configuration; the first value of each counts.

        ssh passes the file on to jump hosts. Those of the box are for whatever it is called, so that no spelling of a
        host (``user@host``) leaves them out.
        """
        lines = []
        for host, configuration in self._hops:
            files = [self.folder / "hops", *configuration.files("userknownhostsfile")]
            everyones, master = configuration.files("globalknownhostsfile"), configuration.one("controlpath")
            lines += [
                f"Host {host}",
                f"UserKnownHostsFile {' '.join(map(_quoted, files))}",
                f"GlobalKnownHostsFile {' '.join(map(_quoted, everyones)) or 'none'}",
                f"StrictHostKeyChecking {'yes' if configuration.is_strict else 'ask'}",
                f"ControlPath {_quoted(master) if master and configuration.checks_host_keys else 'none'}",
                *([f"ConnectTimeout {wait}"] if (wait := configuration.one("connecttimeout")) else []),
            ]
        lines += ["Match all", *(f"{name} {value}" for name, value in self._options().items())]
        users = [self._config] if self._config else ["~/.ssh/config", "/etc/ssh/ssh_config"]
        lines += ["Match all", *(f'Include "{file}"' for file in users)]
        lines += ["Match all", f"Ciphers {CIPHERS}"]  # ssh takes the first value that it meets: the user's, if any
        return "\n".join([*lines, ""])

    def _has_users_master(self) -> bool:
        file = ["-F", self._config] if self._config else []
        command = [self.program.path, *file, *self._target(), "-O", "check", "--", self.box.host]
        try:
            done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=5)
        except (OSError, subprocess.SubprocessError):
            return False
        return done.returncode == 0

    def failed(self) -> None:
        """A connection failed: the next one does not use the user's master, which may be dead."""
        self._avoids_users_master = True

    def succeeded(self) -> None:
        """A connection logged in: store the keys that the user accepted."""
        self._avoids_users_master = self.asked = False
        self._store_accepted()

    # -------------------------------------------------------------------------------------------------- host keys

    def _prepare_host_keys(self) -> None:
        box, configuration = self.box, self.configuration
        self._ours = renamed(self.host_keys.path, box.name, configuration.lookup)
        lines = list(self._ours)
        if self.knows_box:  # the box's name decides, but a revoked key stays revoked
            users = configuration.files("userknownhostsfile") + configuration.files("globalknownhostsfile")
            lines += marked(users)
        self._write("target", [line.text for line in lines])
        hops = [
            line.text for host, hop in self._hops for line in renamed(self.host_keys.path, _hop_name(hop), hop.lookup)
        ]
        self._write("hops", hops)

    @property
    def knows_box(self) -> bool:
        """Whether our file has a key for the box."""
        return any(not line.marked for line in self._ours)

    @property
    def hop_lookups(self) -> set[str]:
        """The jump hosts' names in known_hosts files."""
        return {hop.lookup for _, hop in self._hops}

    def _write(self, name: str, lines: list[str]) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def _store_accepted(self) -> None:
        """Move the keys that ssh has added to our own file."""
        known = {line.text for line in self._ours}
        hops = {hop.lookup: _hop_name(hop) for _, hop in self._hops}
        for file in ("target", "hops"):
            for text in (self.folder / file).read_text().splitlines():
                fields = text.split()
                if len(fields) != 3 or text in known or (self.knows_box and file == "target"):
                    continue
                name = self.box.name if file == "target" else hops.get(fields[0], "")
                blob = base64.b64decode(fields[2])
                if name and all(entry.blob != blob for entry in self.host_keys.entries(name)):
                    self.host_keys.add(name, fields[1], blob)
        self.accepted.clear()

    def origin(self, file: str, number: int) -> tuple[Path, int]:
        """The file and line that a line of a prepared file came from."""
        if Path(file) == self.folder / "target" and number <= len(self._ours):
            line = self._ours[number - 1]
            return line.file, line.number
        if Path(file) == self.folder / "hops":
            return self.host_keys.path, 0
        return Path(file), number

    def revoked_in(self, fingerprint: str) -> str:
        """Where a key is marked as revoked: file and line, or ""."""
        configuration = self.configuration
        users = configuration.files("userknownhostsfile") + configuration.files("globalknownhostsfile")
        for line in marked([self.host_keys.path, *users]):
            fields = line.text.split()
            with suppress(ValueError, IndexError):
                if fields[0] == "@revoked" and fingerprint_of(base64.b64decode(fields[3])) == fingerprint:
                    return f"{line.file} line {line.number}"
        return str(configuration.one("revokedhostkeys"))

    # ---------------------------------------------------------------------------------------------------- commands

    def command(self, remote: str) -> list[str]:
        """The command that runs a remote command without a terminal, and is the master for :meth:`attach`."""
        options = ["BatchMode=no", "LogLevel=DEBUG1", f"ControlMaster={'no' if self._users_master else 'yes'}"]
        arguments = [argument for option in options for argument in ("-o", option)]
        return [
            self.program.path,
            "-T",
            *self._arguments(),
            "-E",
            str(self.log),
            *arguments,
            "--",
            self.box.host,
            remote,
        ]

    def attach(self, remote: str) -> list[str]:
        """The command that runs a remote command in this terminal, over the master if it is connected."""
        return ["ssh", "-t", *self._arguments(), "--", self.box.host, remote]

    def dial(self, address: str) -> list[str]:
        """The command that connects its input and output to ``HOST:PORT``, over the master that stands."""
        options = ["-o", "BatchMode=yes", "-o", "LogLevel=QUIET", "-W", address]
        return [self.program.path, *self._arguments(), *options, "--", self.box.host]

    def _arguments(self) -> list[str]:
        return ["-F", str(self.folder / "config"), *self._target()]

    def _options(self) -> dict[str, str]:
        configuration = self.configuration
        files = [self.folder / "target"]
        if not self.knows_box:
            files += configuration.files("userknownhostsfile")
        strict = self.knows_box or configuration.is_strict
        master = {} if self._users_master else {"ControlPath": _quoted(self.folder / "master")}
        options = {
            **master,
            "ControlMaster": "no",
            "ControlPersist": "no",
            "RemoteCommand": "none",
            "UserKnownHostsFile": " ".join(map(_quoted, files)),
            **({"GlobalKnownHostsFile": "/dev/null"} if self.knows_box else {}),
            "StrictHostKeyChecking": "yes" if strict else "ask",
            "HashKnownHosts": "no",
            "UpdateHostKeys": "no",
            "CheckHostIP": "no",
            "VisualHostKey": "no",
            "ServerAliveInterval": str(ALIVE_S),
            "ServerAliveCountMax": "3",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ClearAllForwardings": "yes",
            "PermitLocalCommand": "no",
            "Tunnel": "no",
        }
        if not configuration.one("connecttimeout"):
            options["ConnectTimeout"] = str(CONNECT_S)
        if self.program.version >= (8, 7):
            options |= {"SessionType": "default", "StdinNull": "no", "ForkAfterAuthentication": "no"}
        return options

    @property
    def connect_timeout_s(self) -> int:
        """``ConnectTimeout``: the user's, or ours."""
        value = self.configuration.one("connecttimeout")
        return int(value) if value.isdigit() else CONNECT_S

    def where(self) -> str:
        """``HOST:PORT`` of the box."""
        return f"{self.configuration.one('hostname') or self.box.host}:{self.configuration.one('port') or 22}"

    def environment(self) -> dict[str, str]:
        """The environment of ssh: every question comes to the app."""
        return {
            **os.environ,
            "SSH_ASKPASS": str(self.folder / "askpass"),
            "SSH_ASKPASS_REQUIRE": "force",
            "GRPO_ASKPASS": str(self.folder / "questions"),
        }

    def _write_askpass(self) -> None:
        from remote.transports import askpass

        script = self.folder / "askpass"
        argv = shlex.join([sys.executable, "-I", "-S", str(Path(askpass.__file__).resolve())])
        script.write_text(f'#!/bin/sh\nexec {argv} "$@"\n')
        script.chmod(0o700)

    def close(self) -> None:
        """Remove the private directory. May be repeated."""
        atexit.unregister(self.close)
        if _live.get(self.box.name) is self:
            del _live[self.box.name]
        self.questions.close()
        self.passphrases.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


_live: dict[str, BoxSsh] = {}
"""Of each box with a client in this program."""


def live(box: Box) -> BoxSsh | None:
    """The ssh of a box that this program has connected to."""
    ssh = _live.get(box.name)
    return ssh if ssh is not None and ssh.box == box and ssh.configuration.values else None


def _hop_name(hop: Configuration) -> str:
    """A jump host's name in our file."""
    return f"jump-{hop.one('hostname')}-{hop.one('port') or 22}"


def _quoted(path: object) -> str:
    """A path for an option of ssh: quoted, and without the meaning of ``%``."""
    text = str(path).replace("%", "%%")
    return f'"{text}"' if re.search(r"[\s']", text) else text
