"""The agent over the system's ``ssh``: one child, one session, so that whatever ``ssh NAME`` reaches is reached.

The session runs the loop of :mod:`remote.transports.bootstrap`. The child is also the master that attaching uses, and
ends with this program: its input ends.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from contextlib import suppress

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, TryAgain, Unreachable
from remote.protocol import Flood
from remote.protocol.pipes import PIPE_BYTES, widen
from remote.transports import bootstrap
from remote.transports.bootstrap import MAX_ANSWER, BoxShell
from remote.transports.openssh_dial import DialedSsh
from remote.transports.openssh_log import Log, failure
from remote.transports.openssh_questions import Announce, AskQuestion, LoginQuestions
from remote.transports.openssh_setup import BoxSsh
from remote.transports.timing import EXIT_S, POLL_S, SEND_S, Timing
from remote.transports.transport import AskHostKey, ErrorTail, Waker

LOGIN_STEPS = 3
"""Time limit of a login in steps, besides ``ConnectTimeout``, ``Match exec`` and the questions."""
TERMINATE_S = 0.5
"""Time for ssh to exit once it was asked to."""
ERRORS_S = 0.2
"""The errors of a command may arrive after its exit status."""
DYING_S = 0.05


class OpenSshTransport:
    """One connection to one box. See :class:`remote.transports.transport.Transport`."""

    def __init__(
        self,
        ssh: BoxSsh,
        ask_host_key: AskHostKey,
        ask: AskQuestion,
        announce: Announce,
        *,
        step_s: float = Timing.step,
        clock: Clock = CLOCK,
    ) -> None:
        self.address = ""
        self._ssh, self._box, self._clock = ssh, ssh.box, clock
        self._questions = LoginQuestions(ssh, ask_host_key, ask, announce, clock)
        self._step_s = step_s
        self._owner = threading.get_ident()
        self._waker = Waker(clock)
        self._process: subprocess.Popen[bytes] | None = None
        self._log_fd = -1
        self._log = Log(clock)
        self._errors = ErrorTail(clock)
        self.output = b""
        """Received, not yet read."""
        self._stderr = bytearray()
        """While opening."""
        self._stderr_open = True
        self._shell = BoxShell(self)
        self._ready = False
        self._deadline = 0.0
        self._opening = True
        self._closed = False
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------------------- opening

    def open(self, greeting: bytes = b"") -> None:
        self._owner = threading.get_ident()
        self._ssh.resolve(lambda: self._closed)
        try:
            self._start()
            bootstrap.start(self._box, self._shell, greeting, self._wait_ready)
        except Unreachable:
            self._ssh.failed()
            raise
        self._errors.add(bytes(self._stderr[-ErrorTail.KEPT :]))
        self._stderr.clear()
        self._opening = False

    def _start(self) -> None:
        """Start ssh, which logs in and starts the loop."""
        self._log_fd = os.open(self._ssh.log, os.O_RDWR | os.O_NONBLOCK)  # its own writer, so that it never ends
        try:
            self._process = subprocess.Popen(
                self._ssh.command(self._shell.command),
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self._ssh.environment(),
                start_new_session=True,  # no terminal to ask questions on; a process group to end
            )
        except OSError as error:
            raise Refused(f"cannot run {self._ssh.program.path}: {error.strerror or error}") from error
        assert self._process.stdin is not None
        os.set_blocking(self._process.stdin.fileno(), False)
        assert self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout):
            widen(stream.fileno())
        if self._closed:  # while it started
            self._signal(signal.SIGTERM)

    def _wait_ready(self) -> None:
        """Wait until the loop runs; the first script was sent before, to save a round trip."""
        limit = self._deadline - self._clock.monotonic()
        self._limit_s(LOGIN_STEPS * self._step_s + self._ssh.connect_timeout_s + self._ssh.resolved_in_s)
        self._shell.until(f"logging in to {self._ssh.where()}", self._shell.ready)
        self._limit_s(limit)
        self._ready = True
        self._stderr.clear()
        self._questions.succeeded()
        self._ssh.succeeded()

    def more(self, what: str) -> None:
        """Wait for output, and answer questions. See :class:`remote.transports.bootstrap.ShellSession`."""
        if self._closed:
            raise Unreachable("the connection was closed")
        left = self._deadline - self._clock.monotonic()
        if left <= 0:
            said = self._shell.waits_for(self._stderr) if self._log.authenticated else ""
            raise self._end_of(what, f"{what} took too long (box '{self._box.name}'){said}")
        if not self._read(min(left, POLL_S)):
            raise self._end_of(what)
        if len(self.output) + len(self._stderr) > MAX_ANSWER:
            raise Flood(f"{what}: '{self._box.name}' floods the link: more than {MAX_ANSWER >> 20} MiB")

    def _read(self, timeout: float) -> bool:
        """Read what there is, within ``timeout`` seconds; returns whether the output is still open."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None
        out, err = process.stdout.fileno(), process.stderr.fileno()
        wanted = [out, self._log_fd, *([err] if self._stderr_open else [])]
        wanted += self._questions.descriptors() if self._opening else []
        ready = self._waker.wait(wanted, timeout)
        if self._log_fd in ready:
            self._read_log()
        if err in ready:
            self._read_errors()
        if self._opening:
            self._deadline += self._questions.handle(ready)  # the time until an answer does not count
        if out in ready:
            data = os.read(out, PIPE_BYTES)
            self.output += data
            return bool(data)
        return True

    def _read_log(self) -> None:
        with suppress(BlockingIOError):
            self._log.add(os.read(self._log_fd, 1 << 18))
        self.address = self._log.address or self.address

    def _read_errors(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        piece = os.read(self._process.stderr.fileno(), 65_536)
        if not piece:
            self._stderr_open = False  # a closed descriptor would make every wait return at once
        elif self._opening:
            self._stderr += piece
        else:
            self._errors.add(piece)

    def _wait_errors(self) -> None:
        end = self._clock.monotonic() + ERRORS_S
        while self._stderr_open and (left := end - self._clock.monotonic()) > 0 and self._read(left):
            pass

    def _end_of(self, what: str, expired: str = "") -> Exception:
        """Why the session ended, or was ended because its time had."""
        process = self._process
        assert process is not None
        if self._closed:
            return Unreachable("the connection was closed")
        if expired:
            self._signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(TERMINATE_S)
        self._wait_errors()
        self._read_log()
        errors = self._stderr.decode(errors="replace")
        if self._questions.refusal is not None:
            return self._questions.refusal
        if expired:
            return Unreachable(expired)
        if self._questions.accepted_key and not self._log.authenticated:
            return TryAgain("the host key was accepted; connecting again")  # the box does not wait while a user decides
        status = process.returncode
        received = self._log.exit_status is not None or (status is not None and 0 <= status < 255)
        if received and not self._ready:
            reason = (errors or self.output.decode(errors="replace")).strip()[-200:] or f"exit status {status}"
            return Refused(f"the login shell of '{self._box.name}' does not run commands: {reason}")
        if self._log.authenticated:
            last = (self._log.words() or ["the connection ended"])[-1]
            return Unreachable(f"{what} on '{self._box.name}' ended early: {last}")
        return self._questions.asked_in_vain(failure(self._ssh, self._log, errors, self._ssh.where()))

    def limit(self, steps: int) -> None:
        """Begin a time limit."""
        self._limit_s(steps * self._step_s)

    def _limit_s(self, seconds: float) -> None:
        self._deadline = self._clock.monotonic() + seconds

    # ------------------------------------------------------------------------------------------------ the bytes

    def send(self, data: bytes) -> None:
        if self._process is None or self._opening:
            raise Unreachable(f"not connected to '{self._box.name}'")
        self._limit_s(SEND_S)
        self.write(data, "sending")

    def write(self, data: bytes, what: str) -> None:
        """Send within the time limit. Raises Unreachable or Refused."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        view, stdin = memoryview(data), process.stdin.fileno()
        try:
            while view:
                if self._closed or self._clock.monotonic() >= self._deadline:
                    raise Unreachable(f"{what}: the connection to '{self._box.name}' does not accept data")
                _, writable, _ = select.select([], [stdin], [], POLL_S)
                if writable:
                    with suppress(BlockingIOError):
                        view = view[os.write(stdin, view[:PIPE_BYTES]) :]
                self._drain()
        except (OSError, ValueError) as error:
            if self._opening and not self._closed:
                raise self._end_of(what) from error
            raise Unreachable(f"the connection to '{self._box.name}' broke: {self._reason() or error}") from error

    def _drain(self) -> None:
        """Keep ssh from waiting for this program to read its log and errors."""
        assert self._process is not None
        assert self._process.stderr is not None
        err = self._process.stderr.fileno()
        wanted = [self._log_fd, *([err] if self._stderr_open else [])]
        ready, _, _ = select.select(wanted, [], [], 0)
        if self._log_fd in ready:
            self._read_log()
        if err in ready:
            self._read_errors()

    def receive(self, timeout: float) -> bytes | None:
        if self.output:
            data, self.output = self.output, b""
            return data
        if self._process is None or self._closed:
            return b""
        try:
            is_open = self._read(timeout)
        except (OSError, ValueError):
            return b""
        data, self.output = self.output, b""
        if not data and not is_open:
            with suppress(OSError, subprocess.TimeoutExpired):
                self._process.wait(EXIT_S)
                self._read_log()
            return b""
        return data or None

    def dial(self, host: str, port: int) -> DialedSsh:
        if self._process is None or self._opening or self._closed:
            raise Unreachable(f"not connected to '{self._box.name}'")
        return DialedSsh(self._ssh.dial(f"{host}:{port}"), self._has_ended)

    def _has_ended(self) -> bool:
        """Whether ssh, whose connection the dialed ones use, has exited, or exits within DYING_S. Any thread."""
        process = self._process
        if process is None or self._closed:
            return True
        try:
            process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            return False
        return True

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        self._closed = True
        if threading.get_ident() != self._owner:
            self._signal(signal.SIGTERM)
            self._waker.wake()  # the owner cleans up
            return
        process, self._process = self._process, None
        self._questions.close()
        if process is not None:
            self._end(process)
        if self._log_fd >= 0:
            os.close(self._log_fd)
            self._log_fd = -1
        self._waker.close()

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """End ssh: by the end of its input, then by signals, to the commands it runs as well."""
        assert process.stdin is not None
        process.stdin.close()
        for number, seconds in ((None, EXIT_S), (signal.SIGTERM, TERMINATE_S), (signal.SIGKILL, TERMINATE_S)):
            if number is not None:
                _signal(process, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
                break
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()

    def _signal(self, number: int) -> None:
        with self._lock:
            if self._process is not None:
                _signal(self._process, number)

    def describe(self) -> str:
        configuration = self._ssh.configuration
        return f"ssh {configuration.one('user')}@{self._ssh.where()} ({self._ssh.program.name})"

    def algorithms(self) -> dict[str, str]:
        return dict(self._log.algorithms)

    def error_tail(self) -> str:
        return self._errors.text() or self._reason()

    def _reason(self) -> str:
        words = self._log.words()
        return words[-1] if words else ""


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Signal ssh and the commands it runs."""
    if process.poll() is None:
        with suppress(OSError):
            os.killpg(process.pid, number)
