"""A program on a terminal of its own: what it writes, with keys typed at given times."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time

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
        self.began = time.monotonic()
        os.write(ready, b"x")
        os.close(ready)

    @property
    def text(self) -> str:
        """What was written, without control sequences."""
        return CONTROL.sub(b"", self.written).decode(errors="replace")

    def type(self, keys: str, at: float = 0.0) -> None:
        """Type keys, not before ``at`` seconds after the start."""
        time.sleep(max(0.0, self.began + at - time.monotonic()))
        os.write(self.terminal, keys.encode())

    def until(self, text: str) -> None:
        """Read until a text was written."""
        deadline = time.monotonic() + 5 * PATIENCE
        while text not in self.text:
            assert time.monotonic() < deadline, f"no {text!r} in {self.text[-3000:]}"
            assert self._read(), f"ended without {text!r}: {self.text[-3000:]}"

    def end(self) -> int:
        """Read until the program ends; returns its exit code."""
        while self._read():
            pass
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def _read(self) -> bool:
        if not select.select([self.terminal], [], [], 0.1)[0]:
            return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        try:
            data = os.read(self.terminal, 65_536)
        except OSError:  # the other side is closed
            return False
        self.written += data
        return bool(data)

    def close(self) -> None:
        """End the program, whatever it does."""
        if self.status is None:
            os.kill(self.pid, 9)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)
