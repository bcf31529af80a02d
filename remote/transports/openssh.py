"""The agent over the system's ``ssh``: one child, one session; and what its log says of a failure.

Only ssh's report of a whole answer is a refusal (see :mod:`remote`). A host key is compared before its signature is
verified, so a damaged byte can look like another key: such an end is a refusal once a second connection ends alike.

The session runs the loop of :mod:`remote.transports.bootstrap`. The child is also the master that attaching uses, and
ends with this program: its input ends.
"""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from grpo_train.run_dir.clock import CLOCK, Clock
from remote.base import Refused, TryAgain, Unreachable
from remote.protocol import Flood
from remote.protocol.copies import PIPE_BYTES, widen
from remote.transports import bootstrap
from remote.transports.bootstrap import MAX_ANSWER, BoxShell
from remote.transports.identities import changed_key
from remote.transports.openssh_questions import Announce, AskQuestion, LoginQuestions
from remote.transports.openssh_setup import BoxSsh
from remote.transports.transport import EXIT_S, MIB, POLL_S, SEND_S, Allowance, AskHostKey, ErrorTail, Timing, Waker

DIAL_EXIT_S = 2.0


class DialedSsh:
    """See :class:`remote.transports.transport.Stream`. An address that refuses ends the stream."""

    def __init__(self, command: list[str], link_has_ended: Callable[[], bool]) -> None:
        """Start ssh. Raises Unreachable."""
        self.was_cut = link_has_ended  # ssh ends with 0 in either case
        self._ours, theirs = socket.socketpair()
        self._is_closed = False
        try:
            with theirs:
                self._process = subprocess.Popen(
                    command,
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
        except OSError as error:
            self._ours.close()
            raise Unreachable(f"cannot run {command[0]}: {error.strerror or error}") from error

    def recv(self, size: int, /) -> bytes:
        return self._ours.recv(size)

    def sendall(self, data: bytes, /) -> None:
        self._ours.sendall(data)

    def shutdown(self, how: int, /) -> None:
        self._ours.shutdown(how)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)  # wakes a thread that receives
        self._ours.close()
        threading.Thread(target=self._reap, name="ssh-dial", daemon=True).start()

    def _reap(self) -> None:
        try:
            self._process.wait(DIAL_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


KEPT = 400
LONGEST = 2_000
"""Bytes of a line."""
SIGNALS = ("ext-info-", "kex-strict-")
"""Names in a list of algorithms that are none."""
_NOISE = re.compile(r"^(debug\d:|Transferred: |Bytes per second: |Authenticated to |Warning: Permanently added|@)")
_OPTIONS = {
    "key exchange method": "kexalgorithms",
    "host key type": "hostkeyalgorithms",
    "cipher": "ciphers",
    "MAC": "macs",
}
"""What ssh found no match for, and the option that lists its own."""
_AGREED = {"algorithm": "kex", "host key algorithm": "host_key", "client->server cipher": "cipher"}
_UNKNOWN_KEY = re.compile(r"^No (\S+) host key is known for (.+?)( and you have .*)?\.?$", re.MULTILINE)
_PROBLEM = re.compile(r"Load key|Identity file|Certificate|sign_and_send")


class Log:
    """The lines of ssh's log, the newest ones."""

    def __init__(self, clock: Clock = CLOCK) -> None:
        self.lines: deque[str] = deque(maxlen=KEPT)
        self.address = ""
        self.authenticated = False
        self.exit_status: int | None = None
        """The remote command's, once it was received."""
        self.key_type = self.fingerprint = ""
        """Of the host key."""
        self.algorithms: dict[str, str] = {}
        """``kex``, ``host_key`` and ``cipher``; empty over a connection that was open before."""
        self.offered: list[str] = []
        """Keys that were offered to the box."""
        self._rest = b""
        self._allowance = Allowance("the box floods the log of ssh", MIB, MIB // 16, clock)

    def add(self, data: bytes) -> None:
        """Append output. Raises Flood: a server can make ssh log its messages."""
        self._allowance.spend(len(data))
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-LONGEST:]
        for line in lines:
            self._add(line[:LONGEST].decode(errors="replace").rstrip("\r"))

    def _add(self, line: str) -> None:
        self.lines.append(line)
        if found := re.match(r"debug1: Connecting to \S+ \[(.+)\] port \d+", line):
            self.address = found[1]
        elif line.startswith("Authenticated to ") or line.startswith("debug1: Entering interactive session"):
            self.authenticated = True
        elif found := re.match(r"debug1: Server host key: (\S+) (\S+)", line):
            self.key_type, self.fingerprint = found[1], found[2]
        elif found := re.match(r"debug1: kex: (algorithm|host key algorithm|client->server cipher): (\S+)", line):
            self.algorithms[_AGREED[found[1]]] = found[2]
        elif found := re.match(r"debug1: Exit status (\d+)$", line):
            self.exit_status = int(found[1])
        elif found := re.match(r"debug1: Offering public key: (.*)", line):
            self.offered.append(re.sub(r" (explicit|agent)+$", "", found[1]))

    def words(self) -> list[str]:
        """What ssh says to a person."""
        return [line for line in self.lines if line.strip() and not _NOISE.match(line)]


def failure(ssh: BoxSsh, log: Log, errors: str, where: str) -> Refused | Unreachable:
    """Why ssh ended before the box ran a command. ``errors``: standard error, where jump hosts write."""
    proxied = not log.authenticated and bool(
        ssh.configuration.one("proxyjump") or ssh.configuration.one("proxycommand")
    )
    words = log.words()
    text = "\n".join([*words, *(errors.splitlines() if proxied else [])])
    last = (text.strip().splitlines() or [f"{where}: the connection ended"])[-1]
    if proxied and errors.strip() and "UNKNOWN port" in last:
        last = errors.strip().splitlines()[-1]
    if unread := _unread_key(ssh, text):
        return Unreachable(unread)
    if found := _host_key(ssh, log, text, where):
        return Unreachable(f"{where} presented a host key that is not the stored one; comparing again", found)
    if "Unable to negotiate with" in text:
        return _no_algorithm(ssh, text, where)
    if found_line := re.search(r"^(\S+): Permission denied \((.*)\)\.?$", text, re.MULTILINE):
        return Refused(_login_refused(ssh, log, text, found_line[1], found_line[2], by_jump_host=proxied))
    if "Too many authentication failures" in text:
        return Refused(_login_refused(ssh, log, text, where, "too many authentication failures"))
    last = re.sub(r"^ssh: connect to host \S+ port \d+: ", "", last)  # ``where`` has the address
    return Unreachable(f"{where}: {last}" if where not in last else last)


def _unread_key(ssh: BoxSsh, text: str) -> str:
    """What ssh was given, where it says that it knows no key of a box whose key is stored; otherwise "".

    A key of another type than the stored one has ``Offending`` in the report.
    """
    unknown = _UNKNOWN_KEY.search(text)
    if unknown is None or "Offending" in text or not ssh.knows_box or unknown[2] in ssh.hop_lookups:
        return ""
    file = ssh.folder / "target"
    try:
        names = [line.split()[0] for line in file.read_text().splitlines()]
        given = f"{file} has keys of {', '.join(names) or 'no host'}"
    except OSError as error:
        given = f"{file}: {error.strerror}"
    return f"ssh did not find the stored key of '{ssh.box.name}' under {unknown[2]} ({given}); connecting again"


def _no_algorithm(ssh: BoxSsh, text: str, where: str) -> Unreachable:
    """Once, it may be a damaged byte."""
    line = next(line for line in text.splitlines() if "Unable to negotiate with" in line)
    offers = line
    if (found := re.search(r"no matching (.+) found\. Their offer: (\S+)", line)) and found[1] in _OPTIONS:
        theirs = [name for name in found[2].split(",") if not name.startswith(SIGNALS)]
        ours = ssh.configuration.one(_OPTIONS[found[1]]).split(",")
        offers = f"{found[1]}: the box offers {', '.join(theirs)}; ssh offers {', '.join(ours)}"
    return Unreachable(line, Refused(f"{where} and ssh have no SSH algorithm in common. {offers}", "algorithms"))


def _host_key(ssh: BoxSsh, log: Log, text: str, where: str) -> Refused | None:
    """The refusal of a host key."""
    box = ssh.box.name
    if "REVOKED HOST KEY" in text or re.search(r"host key .* (is marked as )?revoked", text, re.IGNORECASE):
        place = ssh.revoked_in(log.fingerprint)
        return Refused(f"the host key of '{box}' is REVOKED: {log.fingerprint} ({place or where})", "host_key")
    if "IDENTIFICATION HAS CHANGED" in text or "Offending" in text:
        found = re.search(r"^Offending (\S+) key in (.+):(\d+)$", text, re.MULTILINE)
        shown = re.search(r"^(SHA256:\S+?)\.?$", text, re.MULTILINE)
        presented = f"the box presents {log.key_type} {shown[1] if shown else log.fingerprint}"
        if found is None:
            return Refused(f"the host key of '{box}' has CHANGED: {presented}", "host_key")
        file, number = ssh.origin(found[2], int(found[3]))
        place = f"{file} line {number}" if number else str(file)
        if found[1].lower() not in log.key_type:
            return Refused(
                f"'{box}' presents a host key of a different type than the stored one: {place} has a {found[1]} key, "
                f"{presented}. Compare it with `ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub` on the box; if it is "
                "listed, delete that line and reconnect",
                "host_key",
            )
        shows = presented.removeprefix("the box presents ")
        stored, fix = f"another {found[1]} key", f"delete line {number} of {file}" if number else "delete that line"
        return Refused(changed_key(box, place, stored, shows, fix, log.address), "host_key")
    if unknown := _UNKNOWN_KEY.search(text):
        return Refused(
            f"the host key of {unknown[2]} is not known, and 'StrictHostKeyChecking yes' is set: "
            f"{unknown[1]} {log.fingerprint}",
            "host_key",
        )
    return None


def _login_refused(ssh: BoxSsh, log: Log, text: str, login: str, methods: str, by_jump_host: bool = False) -> str:
    if by_jump_host and not log.offered:
        return f"a jump host refused the login of {login} ({methods}); `ssh {ssh.box.host}` must work on this machine"
    tried = f"Keys offered: {'; '.join(log.offered)}. " if log.offered else "No key was offered. "
    problems = [line for line in text.splitlines() if _PROBLEM.match(line)]
    if "UNPROTECTED PRIVATE KEY" in text:
        problems.append("other users can read the key file: chmod 600")
    more = f"{'; '.join(dict.fromkeys(problems))}. " if problems else ""
    return (
        f"{login} refused the login ({methods}). {tried}{more}Correct 'user' or 'key' of '{ssh.box.name}' in "
        "boxes.yaml, or add the public key to ~/.ssh/authorized_keys on the box"
    )


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
            bootstrap.start_agent(self._box, self._shell, greeting, self._wait_ready)
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
