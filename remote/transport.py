"""How bytes reach an agent and come back: one small interface, and its plain form for this machine.

:class:`remote.ssh.SshTransport` is the other form. A transport is used by one owner thread; only ``wake`` and
``close`` may be called from others.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Protocol

from remote.agent.environment import clean
from remote.events import HostKeyAsked

AskHostKey = Callable[[HostKeyAsked], bool]
"""Called on the owner thread, blocks until the user answered."""


class Unreachable(Exception):
    """The box cannot be reached now; it may work later."""


class Refused(Exception):
    """It cannot work as it is and waits for the user: a refused key, a changed host key, no Python, …"""


class TryAgain(Exception):
    """Not a failure: something was settled (the user accepted a host key); connect again at once."""


class Transport(Protocol):
    """A two-way stream of bytes to one agent."""

    def open(self) -> None:
        """Connect and start the agent. Raises Unreachable, Refused or TryAgain."""

    def send(self, data: bytes) -> None:
        """Send all of ``data``. Raises Unreachable."""

    def receive(self, timeout: float) -> bytes | None:
        """Some bytes; None when none came within ``timeout`` seconds or ``wake`` was called; b"" at the end."""

    def wake(self) -> None:
        """Make a waiting ``receive`` return. Any thread."""

    def close(self) -> None:
        """End it; ``receive`` then returns b"". Any thread, any number of times."""

    def describe(self) -> str:
        """What it connects to, for the user's eyes."""

    def why(self) -> str:
        """After the end: the last words of the agent's standard error, or ""."""


class Waker:
    """A socket pair that lets one thread interrupt another's ``select``."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:
            pass  # full: it is awake already; closed: nobody waits

    def wait(self, descriptors: list[int], timeout: float) -> list[int]:
        """Which descriptors can be read, within ``timeout`` seconds."""
        reader = self._reader.fileno()
        ready, _, _ = select.select([*descriptors, reader], [], [], max(0.0, timeout))
        if reader in ready:
            try:
                self._reader.recv(4_096)
            except OSError:
                pass
        return [descriptor for descriptor in descriptors if descriptor in ready]

    def close(self) -> None:
        self._reader.close()
        self._writer.close()


class LocalTransport:
    """The agent as a child process of this program."""

    def __init__(self, python: str = sys.executable, environment: Mapping[str, str] | None = None) -> None:
        self._python = python
        self._environment = clean(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = bytearray()
        self._waker = Waker()
        self._owner = threading.get_ident()

    def open(self) -> None:
        from remote.bundle import build

        self._owner = threading.get_ident()
        command = [self._python, "-I", str(build().path()), "serve"]
        try:
            self._process = subprocess.Popen(
                command,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            raise Refused(f"cannot start the agent on this machine: {error}") from error

    @property
    def pid(self) -> int:
        """The agent's process id (tests look at it)."""
        assert self._process is not None
        return self._process.pid

    def send(self, data: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise Unreachable("the agent on this machine is not started")
        view = memoryview(data)
        try:
            while view:
                view = view[self._process.stdin.write(view) or 0 :]
        except (OSError, ValueError) as error:
            raise Unreachable(f"the agent on this machine ended ({self.why() or error})") from error

    def receive(self, timeout: float) -> bytes | None:
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return b""
        try:
            out, errors = process.stdout.fileno(), process.stderr.fileno()
            ready = self._waker.wait([out, errors], timeout)
            if errors in ready and not self._drain_errors() and out not in ready:
                ready = self._waker.wait([out], timeout)  # its end would make every select return at once
            if out not in ready:
                return None
            data = os.read(out, 1 << 18)
            if not data:
                self._drain_errors()  # the agent has ended, so this ends too
            return data
        except (OSError, ValueError):
            return b""

    def _drain_errors(self) -> bytes:
        assert self._process is not None
        assert self._process.stderr is not None
        piece = os.read(self._process.stderr.fileno(), 65_536)
        self._errors += piece
        del self._errors[:-8_192]
        return piece

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        process = self._process
        if process is None:
            return
        if threading.get_ident() != self._owner:
            process.kill()  # the owner reads the end and cleans up; closing its files under it would race
            return
        self._process = None
        for file in (process.stdin, process.stdout, process.stderr):
            assert file is not None
            file.close()  # the agent ends at the end of its input
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:  # it finishes what it was asked to change (a kill takes its time)
            threading.Thread(target=process.wait, daemon=True).start()
        self._waker.close()

    def describe(self) -> str:
        return "this machine"

    def why(self) -> str:
        return self._errors.decode(errors="replace").strip()[-400:]
