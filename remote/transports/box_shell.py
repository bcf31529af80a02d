"""Scripts on the box, all in one session of one login: a loop in ``sh`` that reads one encoded script per line.

The account's shell sees one constant command without a character that any shell reads differently. Lines that are not
for the loop are ignored, so what the agent reads first may follow the script that may start it: no answer is awaited.
"""

from __future__ import annotations

import secrets
from typing import Protocol

from remote.protocol.text import clean


class Session(Protocol):
    """The session in which the loop runs."""

    output: bytes
    """Received, not yet read."""

    def limit(self, steps: int) -> None:
        """Begin a time limit, in steps."""

    def write(self, data: bytes, what: str) -> None:
        """Send within the time limit. Raises Unreachable or Refused."""

    def more(self, what: str) -> None:
        """Wait for more output within the time limit. Raises Unreachable, Refused or Flood."""


class BoxShell:
    """The loop of one session. ``command`` starts it; it prints the line ``ready``."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._startup = ""
        """What the account's shell printed before the loop ran."""
        self._token = secrets.token_hex(8)
        self.ready = f"grpo-ready-{self._token}"
        self.command = (
            f"sh -c 'echo; echo {self.ready}; while read -r line; do case $line in {self._token}*) "
            f'eval "$(printf %b "${{line#{self._token}}}")";; esac; done\''
        )

    def run(self, script: str, following: bytes, steps: int, what: str) -> None:
        """Run a script within a time limit. ``following``: bytes that it, or what it becomes, reads first."""
        self._session.limit(steps)
        encoded = "".join(
            chr(byte) if 32 <= byte < 127 and byte not in b"\\" else f"\\0{byte:03o}" for byte in script.encode()
        )
        self._session.write(f"{self._token}{encoded}\n".encode() + following, what)

    def until(self, what: str, *markers: str) -> tuple[str, str]:
        """The output before a line that is one of the markers, and that marker. Raises as :meth:`Session.more`."""
        lines = {marker: f"\n{marker}\n".encode() for marker in markers}
        while True:
            for marker, line in lines.items():
                before, found, rest = self._session.output.partition(line)
                if found:
                    self._session.output = rest
                    if marker == self.ready:
                        self._startup = before.decode(errors="replace")
                    return before.decode(errors="replace"), marker
            self._session.more(what)

    def waits_for(self, errors: bytearray) -> str:
        """The last output of a shell that hangs, for a message: its startup file may ask a question. "" without output.

        ``errors``: its standard error.
        """
        text = self._startup + (self._session.output + b"\n" + errors).decode(errors="replace")
        lines = [line for line in clean(text).splitlines() if line.strip()]
        asks = "; a startup file such as ~/.bashrc must not ask anything in a login without a terminal"
        return f": its shell printed '{lines[-1].strip()[-200:]}'{asks}" if lines else ""
