"""The local transport: the box is this machine, and the agent is a child process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.agent.box import clean_environment
from remote.base import Refused, Unreachable
from remote.transports.bootstrap import build, receiving_argv, start_marker, stored
from remote.transports.transport import EXIT_S, ErrorTail, Waker

START_S = 15.0
DIAL_S = 10.0


def _start(argv: list[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        bufsize=0,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    view = memoryview(data)
    while view:
        view = view[process.stdin.write(view) or 0 :]


class LocalTransport:
    """The agent as a child process. See :class:`remote.transports.transport.Transport`."""

    def __init__(self, environment: Mapping[str, str] | None = None, clock: Clock = CLOCK) -> None:
        self.address = ""
        self._clock = clock
        self._environment = clean_environment(os.environ if environment is None else environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._errors = ErrorTail(clock)
        self._waker = Waker(clock)
        self._owner = threading.get_ident()
        self._unread = b""

    def open(self, greeting: bytes = b"") -> None:
        self._owner = threading.get_ident()
        marker, upload = start_marker(), b""
        try:
            try:
                argv = self.command()
            except OSError:  # the agent tries once more, and reports why it runs from memory
                bundle = build()
                argv, upload = receiving_argv(sys.executable, marker, [str(bundle.cached)]), bundle.data
            self._process = _start(argv, self._environment)
        except OSError as error:
            raise Refused(f"cannot start the agent on this machine: {error}") from error
        self.send(upload + greeting)
        if upload:
            self._skip(f"\n{marker}\n".encode())

    @staticmethod
    def command() -> list[str]:
        """The command of the agent. Raises OSError where its bundle cannot be stored."""
        return [sys.executable, "-I", "-S", str(stored()), "serve"]

    def _skip(self, marker: bytes) -> None:
        """Read up to the marker. Raises Unreachable."""
        output, deadline = b"", self._clock.monotonic() + START_S
        while marker not in output:
            data = self.receive(max(0.0, deadline - self._clock.monotonic()))
            if not data:
                raise Unreachable(f"the agent on this machine did not start ({self.error_tail() or 'no answer'})")
            output += data
        self._unread = output.partition(marker)[2]

    def send(self, data: bytes) -> None:
        if self._process is None or self._process.stdin is None:
            raise Unreachable("the agent on this machine has not been started")
        try:
            _write(self._process, data)
        except (OSError, ValueError) as error:
            raise Unreachable(f"the agent on this machine exited ({self.error_tail() or error})") from error

    def receive(self, timeout: float) -> bytes | None:
        if self._unread:
            unread, self._unread = self._unread, b""
            return unread
        process = self._process
        if process is None or process.stdout is None or process.stderr is None:
            return b""
        try:
            out, errors = process.stdout.fileno(), process.stderr.fileno()
            ready = self._waker.wait([out, errors], timeout)
            if errors in ready and not self._drain_errors() and out not in ready:
                ready = self._waker.wait([out], timeout)  # a closed stderr would make every select return at once
            if out not in ready:
                return None
            data = os.read(out, 1 << 18)
            if not data:
                self._drain_errors()  # does not block: the agent has exited
            return data
        except (OSError, ValueError):
            return b""

    def _drain_errors(self) -> bytes:
        assert self._process is not None
        assert self._process.stderr is not None
        piece = os.read(self._process.stderr.fileno(), 65_536)
        self._errors.add(piece)
        return piece

    def dial(self, host: str, port: int) -> DialedSocket:
        try:
            return DialedSocket(socket.create_connection((host, port), DIAL_S))
        except OSError as error:
            raise Unreachable(f"{host}:{port}: {error.strerror or error}") from error

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        process = self._process
        if threading.get_ident() != self._owner:
            if process is not None:
                process.kill()  # the owner reads the end and cleans up; closing its files here would race
            return
        self._waker.close()
        if process is None:
            return
        self._process = None
        for file in (process.stdin, process.stdout, process.stderr):
            assert file is not None
            file.close()  # the agent exits at the end of its input
        try:
            process.wait(EXIT_S)
        except subprocess.TimeoutExpired:  # it completes a pending request (a kill takes a while)
            threading.Thread(target=process.wait, daemon=True).start()

    def describe(self) -> str:
        return "this machine"

    def algorithms(self) -> dict[str, str]:
        return {}

    def error_tail(self) -> str:
        return self._errors.text()


class DialedSocket:
    """See :class:`remote.transports.transport.Stream`."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(None)
        self.recv, self.sendall = connection.recv, connection.sendall
        self.shutdown, self.close = connection.shutdown, connection.close

    def was_cut(self) -> bool:
        return False  # a reset raises OSError
