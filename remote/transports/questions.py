"""Questions of ssh, which arrive from :mod:`remote.transports.askpass` over a Unix socket.

Only this user can open the socket. ssh (8.5 or newer) puts ``(user@host)`` before whatever a server asks, so a prompt
without it is ssh's own.
"""

from __future__ import annotations

import json
import re
import socket
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

READ_S = 2.0
LONGEST = 65_536
_KINDS = (
    ("host key", r"The authenticity of host '(?P<host>[^']*?)( \([^']*\))?' can't be established"),
    ("host key", r"Please type 'yes', 'no' or the fingerprint"),
    ("passphrase", r"Enter passphrase for "),
    ("pin", r"Enter PIN for "),
    ("password", r"\S+'s password: $"),
)
_FINGERPRINT = re.compile(r"^(?P<type>\S+) key fingerprint is (?P<fingerprint>\S+?)\.?$", re.MULTILINE)


@dataclass
class PendingQuestion:
    """One question, and the connection that its answer goes to."""

    text: str
    hint: str
    """``SSH_ASKPASS_PROMPT``: ``confirm`` (yes or no), ``none`` (a notice without an answer), or ""."""
    connection: socket.socket

    @property
    def kind(self) -> str:
        """``host key``, ``passphrase``, ``pin``, ``password``, ``confirm``, ``touch``, or ``prompt`` (the box's)."""
        if self.hint == "none":
            return "touch"
        if self.hint == "confirm":
            return "confirm"
        return next((kind for kind, pattern in _KINDS if re.match(pattern, self.text)), "prompt")

    def host_key(self) -> tuple[str, str, str] | None:
        """(host, key type, fingerprint) of a question for a host key."""
        host, found = re.match(_KINDS[0][1], self.text), _FINGERPRINT.search(self.text)
        return (host["host"], found["type"], found["fingerprint"]) if host and found else None

    def answer(self, text: str | None) -> None:
        """Answer, once; None refuses."""
        with suppress(OSError):
            self.connection.settimeout(READ_S)
            self.connection.sendall(json.dumps({"answer": text}).encode() + b"\n")
        self.connection.close()


class QuestionSocket:
    """The app's end of the socket."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        path.chmod(0o600)
        self._listener.listen(8)
        self._listener.setblocking(False)

    def fileno(self) -> int:
        return self._listener.fileno()

    def take(self) -> PendingQuestion | None:
        """The next question, if there is one."""
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return None
        try:
            connection.settimeout(READ_S)
            with connection.makefile("rb") as lines:
                question = json.loads(lines.readline(LONGEST))
            return PendingQuestion(str(question["prompt"]), str(question["hint"]), connection)
        except (OSError, ValueError, KeyError, TypeError):
            connection.close()
            return None

    def close(self) -> None:
        self._listener.close()
