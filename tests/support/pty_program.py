"""A program on a terminal of its own: what it writes, and keys that are typed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import threading
import time
from contextlib import suppress

from tests.support.patience import PATIENCE

CONTROL = re.compile(rb"\x1b\[[0-9;?>=$]*[A-Za-z]|\x1b[=>]")


class PtyProgram:
    """Runs until ``end``; ``written`` is all of its output."""

    def __init__(self, command: list[str], environment: dict[str, str], size: tuple[int, int] = (100, 30)) -> None:
        self.written = b""
        self.status: int | None = None
        go, ready = os.pipe()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.close(ready)
            os.read(go, 1)
            os.execve(command[0], command, environment)
        os.close(go)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
        self.modes = termios.tcgetattr(self.terminal)
        os.write(ready, b"x")
        os.close(ready)
        self._ended, self._told = os.pipe()
        self._thread = threading.Thread(target=self._wait, daemon=True)
        self._thread.start()

    def _wait(self) -> None:
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self._told)

    @property
    def text(self) -> str:
        """What was written, without control sequences."""
        return CONTROL.sub(b"", self.written).decode(errors="replace")

    def type(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def until(self, text: str | bytes) -> None:
        """Read until a text was written; bytes: with control sequences."""
        deadline = time.monotonic() + 5 * PATIENCE
        while (text not in self.written) if isinstance(text, bytes) else (text not in self.text):
            more = self._read(max(0.0, deadline - time.monotonic()))
            assert more, f"{'ended' if more is None else 'waits'} without {text!r}: {self.text[-3000:]}"

    def end(self) -> int:
        """Read until the program ends; returns its exit code."""
        while more := self._read(60 * PATIENCE):
            pass
        assert more is None, f"has not ended: {self.text[-3000:]}"
        self._thread.join()
        assert self.status is not None
        return self.status

    def _read(self, seconds: float | None = None) -> bool | None:
        """Whether it wrote something in this time; None: it has ended."""
        ready, _, _ = select.select([self.terminal, self._ended], [], [], seconds)
        if self.terminal not in ready:
            return None if ready else False
        try:
            data = os.read(self.terminal, 65_536)
        except OSError:  # the other side is closed
            return None
        self.written += data
        return bool(data) or None

    def close(self) -> None:
        """End the program, whatever it does."""
        if self.status is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, 9)
        self._thread.join()
        os.close(self.terminal)
        os.close(self._ended)
