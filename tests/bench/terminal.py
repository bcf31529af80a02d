"""A program on a terminal of its own, whose output is watched."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import termios
import time


class Terminal:
    """A program on a terminal of 120 x 40."""

    def __init__(self, command: list[str], home: str) -> None:
        self.began = time.perf_counter()
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
            os.environ.update(HOME=home, XDG_CACHE_HOME=home, XDG_CONFIG_HOME=home, TERM="xterm-256color")
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # each start would compile every module
            os.execv(command[0], command)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))

    def until(self, mark: bytes, after: bytes = b"") -> float:
        """Seconds until ``mark`` is written behind ``after``, from the start of the program or the last key."""
        seen = b""
        while mark not in seen.partition(after)[2] if after else mark not in seen:
            ready, _, _ = select.select([self.terminal], [], [], 30)
            assert ready, f"no {mark!r}: {seen[-400:]!r}"
            assert time.perf_counter() < self.began + 60, f"no {mark!r}: {seen[-400:]!r}"
            seen += os.read(self.terminal, 65_536)
        return time.perf_counter() - self.began

    def press(self, key: bytes, mark: bytes) -> float:
        """Seconds from a key until ``mark`` is written."""
        self.rest(1.0)
        self.began = time.perf_counter()
        os.write(self.terminal, key)
        return self.until(mark)

    def rest(self, seconds: float) -> None:
        """Read what the program still writes."""
        until = time.perf_counter() + seconds
        while (left := until - time.perf_counter()) > 0:
            if select.select([self.terminal], [], [], left)[0]:
                os.read(self.terminal, 65_536)

    def close(self) -> None:
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.terminal)
