"""One child process: start, feed, read and end it, whatever it does.

Nothing here waits for the program: reads are bounded in bytes and in wall time, and at the end the process group is
killed. The trainer is never forked (``posix_spawn`` shares its memory until the new program runs).
"""

from __future__ import annotations

import fcntl
import marshal
import os
import secrets
import select
import signal
import socket
import time
from contextlib import suppress
from dataclasses import dataclass, field

from grpo_train.sandbox.interpreter import interpreter
from grpo_train.sandbox.syscalls import system_call

MAX_RESULT_BYTES = 4 << 20
MAX_RECORDS = 20_000
STDERR_TAIL = 8 << 10
WALL_PER_CPU = 5.0
"""Wall-time limit per second of CPU time: the trainer and other programs share the cores."""
START_SECONDS = 60.0
"""Wall-time limit of the interpreter's start, which runs only trusted code: an overloaded machine is not an error."""
FIRST_INHERITED = 16
"""Descriptors for a child move to this number or above before they become 0 to 5, so that none is overwritten."""
MFD_CLOEXEC_AND_ALLOW_SEALING, F_ADD_SEALS, EVERY_SEAL = 3, 1033, 15
RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXCPU,
                 signal.SIGXFSZ, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)  # fmt: skip


@dataclass
class ChildOutcome:
    """Output and end of a child."""

    records: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    """(letter, index, content), as the child claims them."""
    results: bytes = b""
    """All bytes from the result pipe."""
    forged: bool = False
    """The result pipe contained something other than this job's records."""
    stdout: bytes = b""
    stderr: bytes = b""
    over_limit: bool = False
    """Killed for exceeding an output limit."""
    over_time: bool = False
    """Killed for exceeding a time limit (wall or CPU)."""
    exit_code: int = 0
    """Exit code as in a shell: 128 plus the signal number after a signal."""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def first(self, letter: bytes) -> bytes | None:
        """Content of the first record with this letter; None without one."""
        return next((content for kind, _, content in self.records if kind == letter), None)


def run_child(
    job: dict[str, object],
    *,
    ruleset: int | None,
    cpu_seconds: int,
    environment: dict[str, str],
    stdin: bytes | None = None,
    max_output: int = 0,
) -> ChildOutcome:
    """Run ``job`` in a fresh interpreter. Raises OSError if no process can be started.

    With ``max_output`` standard output and error are read, up to that many bytes each; otherwise they are discarded.
    """
    python = interpreter()
    tag = secrets.token_bytes(8)
    message = marshal.dumps(
        (python.codes, python.path, {**job, "tag": tag, "modules": [name for name, _ in python.codes]})
    )
    outcome = ChildOutcome()
    started = time.monotonic()
    with _Descriptors() as fds:
        result_read, result_write = fds.channel()
        streams = {result_read: _Stream(MAX_RESULT_BYTES, keep_head=True)}
        null = fds.add(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
        inside = [null if stdin is None else fds.file(stdin), null, null, fds.file(message), result_write]
        if max_output:
            out_read, inside[1] = fds.pipe()
            error_read, inside[2] = fds.pipe()
            streams[out_read] = _Stream(max_output, keep_head=True)
            streams[error_read] = _Stream(max_output, keep_head=False)
        if ruleset is not None:
            inside.append(ruleset)
        moved = [fds.add(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_INHERITED)) for fd in inside]
        actions = [(os.POSIX_SPAWN_DUP2, fd, target) for target, fd in enumerate(moved)]
        arguments = [*python.arguments, process_mark(os.getpid())]
        pid = os.posix_spawn(python.binary, arguments, environment, file_actions=actions, setsid=True,
                             setsigmask=(), setsigdef=RESET_SIGNALS)  # fmt: skip
        try:
            fds.close(*moved, *(fd for fd in {*inside} if fd != ruleset))
            process: int | None = None
            with suppress(ProcessLookupError):  # it has ended, and another thread has waited for all children
                process = fds.add(system_call("pidfd_open", pid, 0))
            outcome.over_limit, outcome.over_time = _read(process, streams, result_read, WALL_PER_CPU * cpu_seconds)
        finally:
            _end(pid, outcome)
    outcome.wall_seconds = time.monotonic() - started
    # The kernel sends SIGKILL at the CPU limit; the CPU time used distinguishes this from other kills. Half the limit,
    # because the kernel enforces the limit by clock ticks and reports exact times, which differ on a busy machine.
    outcome.over_time |= outcome.exit_code == 128 + signal.SIGKILL and outcome.cpu_seconds > cpu_seconds / 2
    outcome.results = streams[result_read].content()
    outcome.records, outcome.forged = _records(outcome.results, tag)
    if max_output:
        outcome.stdout, outcome.stderr = streams[out_read].content(), streams[error_read].content()
    return outcome


def process_mark(pid: int) -> str:
    """Last argument of every program that process ``pid`` runs; shows its owner in ``ps``."""
    return f"grpo-sandbox-of-{pid}"


class _Descriptors:
    """Descriptors opened for a child; each is closed once."""

    def __init__(self) -> None:
        self._open: set[int] = set()

    def __enter__(self) -> _Descriptors:
        return self

    def __exit__(self, *_: object) -> None:
        self.close(*self._open)

    def add(self, fd: int) -> int:
        self._open.add(fd)
        return fd

    def close(self, *fds: int) -> None:
        for fd in fds:
            if fd in self._open:
                self._open.discard(fd)
                os.close(fd)

    def pipe(self) -> tuple[int, int]:
        """A pipe with a non-blocking reading end."""
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        return self.add(read), self.add(write)

    def channel(self) -> tuple[int, int]:
        """Like a pipe, but the writer cannot open it through ``/proc/self/fd`` and take back its own records."""
        read, write = (self.add(end.detach()) for end in socket.socketpair())
        os.set_blocking(read, False)
        return read, write

    def file(self, content: bytes) -> int:
        """A sealed in-memory file with this content."""
        fd = self.add(system_call("memfd_create", b"sandbox", MFD_CLOEXEC_AND_ALLOW_SEALING))
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, F_ADD_SEALS, EVERY_SEAL)
        return fd


class _Stream:
    """Bounded buffer of a stream: keeps its head or its last ``STDERR_TAIL`` bytes."""

    def __init__(self, limit: int, keep_head: bool) -> None:
        self.limit = limit
        self.keep_head = keep_head
        self.seen = 0
        self.kept = bytearray()

    def take(self, fd: int) -> bool:
        """Read available bytes; False at the end of the stream."""
        try:
            chunk = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        self.seen += len(chunk)
        self.kept += chunk
        if not self.keep_head:
            del self.kept[:-STDERR_TAIL]
        return bool(chunk)

    def content(self) -> bytes:
        return bytes(self.kept[: self.limit])


def _read(process: int | None, streams: dict[int, _Stream], results: int, wall_seconds: float) -> tuple[bool, bool]:
    """Read until the process ends or must be killed: (output limit exceeded, time limit exceeded).

    ``wall_seconds`` count from the first record on ``results``, which the harness writes before the program runs.
    ``process``: its descriptor; None of one that has ended.
    """
    poll = select.poll()
    for fd in (*streams, *([] if process is None else [process])):
        poll.register(fd, select.POLLIN)
    open_streams = dict(streams)
    exited, started = process is None, False
    deadline = time.monotonic() + START_SECONDS
    while True:
        left = deadline - time.monotonic()
        if left <= 0 and not exited:
            return False, True
        events = poll.poll(0 if exited else left * 1000)
        readable = [fd for fd, _ in events if fd in open_streams]
        if exited and not readable:
            return False, False
        for fd in readable:
            stream = open_streams[fd]
            if not stream.take(fd):
                poll.unregister(fd)
                del open_streams[fd]
            if stream.seen > stream.limit:
                return True, False
            if fd == results and not started:
                started, deadline = True, time.monotonic() + wall_seconds
        if process is not None and not exited and any(fd == process for fd, _ in events):
            exited = True
            poll.unregister(process)


def _end(pid: int, outcome: ChildOutcome) -> None:
    """Kill what is left of the child's process group and collect its status."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # another thread of this process waited for all children
        return
    code = os.waitstatus_to_exitcode(status)
    outcome.exit_code = code if code >= 0 else 128 - code
    outcome.cpu_seconds = usage.ru_utime + usage.ru_stime


def _records(content: bytes, tag: bytes) -> tuple[list[tuple[bytes, int, bytes]], bool]:
    """Records of a result pipe, and whether it contains anything else (a truncated last record is allowed)."""
    records: list[tuple[bytes, int, bytes]] = []
    offset = 0
    while offset < len(content):
        if len(records) == MAX_RECORDS:
            return records, True
        head = content[offset : offset + 17]
        if head[:8] != tag[: len(head)]:
            return records, True
        length = int.from_bytes(head[13:17], "little")
        if len(head) < 17 or offset + 17 + length > len(content):
            return records, False
        records.append((head[8:9], int.from_bytes(head[9:13], "little"), content[offset + 17 : offset + 17 + length]))
        offset += 17 + length
    return records, False
