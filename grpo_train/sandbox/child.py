"""One child: started, fed, read, and ended, whatever it does.

Nothing here waits for the program: every read is bounded in bytes and the whole in wall time, and at the end the
process group is killed. The trainer is never forked (``posix_spawn`` shares its memory until the new program runs).
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
from grpo_train.sandbox.syscalls import call

MAX_RESULT_BYTES = 4 << 20
MAX_RECORDS = 20_000
STDERR_TAIL = 8 << 10
WALL_PER_CPU = 5.0
"""Wall seconds for each CPU second allowed: cores are shared with the trainer and with the other programs."""
FIRST_PASSED_ON = 16
"""Descriptors for a child are moved above this before they are put at 0 to 5, so that none is overwritten."""
MFD_CLOEXEC_AND_ALLOW_SEALING, F_ADD_SEALS, EVERY_SEAL = 3, 1033, 15
RESET_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD, signal.SIGXCPU,
                 signal.SIGXFSZ, signal.SIGALRM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)  # fmt: skip


@dataclass
class Ended:
    """What came out of a child, and how it ended."""

    records: list[tuple[bytes, int, bytes]] = field(default_factory=list)
    """Letter, index, content, as it claims them."""
    results: bytes = b""
    """All that came through the result pipe."""
    forged: bool = False
    """Something else than this job's records came through the result pipe."""
    stdout: bytes = b""
    stderr: bytes = b""
    over_limit: bool = False
    """It was killed because of how much it wrote."""
    over_time: bool = False
    """It was killed because of wall time or CPU time."""
    exit_code: int = 0
    """As a shell gives it: 128 and the signal's number when one ended it."""
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0

    def first(self, letter: bytes) -> bytes | None:
        """The content of the first record with this letter."""
        return next((content for kind, _, content in self.records if kind == letter), None)


def run_child(
    job: dict[str, object],
    *,
    ruleset: int | None,
    cpu_seconds: int,
    environment: dict[str, str],
    stdin: bytes | None = None,
    max_output: int = 0,
) -> Ended:
    """Runs ``job`` in a fresh interpreter. With ``max_output`` standard output and error are read, up to that many
    bytes each; otherwise they go nowhere. Raises OSError when no process can be started."""
    python = interpreter()
    tag = secrets.token_bytes(8)
    message = marshal.dumps(
        (python.codes, python.path, {**job, "tag": tag, "modules": [name for name, _ in python.codes]})
    )
    ended = Ended()
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
        moved = [fds.add(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_PASSED_ON)) for fd in inside]
        actions = [(os.POSIX_SPAWN_DUP2, fd, at) for at, fd in enumerate(moved)]
        arguments = [*python.arguments, process_mark()]
        pid = os.posix_spawn(python.binary, arguments, environment, file_actions=actions, setsid=True,
                             setsigmask=(), setsigdef=RESET_SIGNALS)  # fmt: skip
        try:
            fds.close(*moved, *(fd for fd in {*inside} if fd != ruleset))
            process = fds.add(call("pidfd_open", pid, 0))
            ended.over_limit, ended.over_time = _read(process, streams, started + WALL_PER_CPU * cpu_seconds)
        finally:
            _end(pid, ended)
    ended.wall_seconds = time.monotonic() - started
    # The kernel ends a process at its CPU limit with SIGKILL, as others do: how much it had used tells them apart. It
    # counts by clock ticks there and exactly here, which on a busy machine are not the same.
    ended.over_time |= ended.exit_code == 128 + signal.SIGKILL and ended.cpu_seconds > cpu_seconds / 2
    ended.results = streams[result_read].content()
    ended.records, ended.forged = _records(ended.results, tag)
    if max_output:
        ended.stdout, ended.stderr = streams[out_read].content(), streams[error_read].content()
    return ended


def process_mark(pid: int | None = None) -> str:
    """The last argument of every program that process ``pid`` (this one) runs, by which ``ps`` shows whose it is."""
    return f"grpo-sandbox-of-{pid or os.getpid()}"


class _Descriptors:
    """Closes what was opened for a child, each once."""

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
        """A pipe whose reading end does not block."""
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        return self.add(read), self.add(write)

    def channel(self) -> tuple[int, int]:
        """As a pipe, but the writer cannot open it for reading by ``/proc/self/fd``, and take its own records away
        before they are read here."""
        read, write = (self.add(end.detach()) for end in socket.socketpair())
        os.set_blocking(read, False)
        return read, write

    def file(self, content: bytes) -> int:
        """A file in memory with this content, which nobody can change any more."""
        fd = self.add(call("memfd_create", b"sandbox", MFD_CLOEXEC_AND_ALLOW_SEALING))
        left = memoryview(content)
        while left:
            left = left[os.write(fd, left) :]
        os.lseek(fd, 0, os.SEEK_SET)
        fcntl.fcntl(fd, F_ADD_SEALS, EVERY_SEAL)
        return fd


class _Stream:
    """What is kept of a stream: its head, or its last ``STDERR_TAIL`` bytes; and how much there may be of it."""

    def __init__(self, limit: int, keep_head: bool) -> None:
        self.limit = limit
        self.keep_head = keep_head
        self.seen = 0
        self.kept = bytearray()

    def take(self, fd: int) -> bool:
        """Reads what is there; False at the end of the stream."""
        try:
            part = os.read(fd, 1 << 16)
        except BlockingIOError:
            return True
        self.seen += len(part)
        self.kept += part
        if not self.keep_head:
            del self.kept[:-STDERR_TAIL]
        return bool(part)

    def content(self) -> bytes:
        return bytes(self.kept[: self.limit])


def _read(process: int, streams: dict[int, _Stream], deadline: float) -> tuple[bool, bool]:
    """Reads until the process has ended; True, and which, when it must be killed for its output or its time."""
    poll = select.poll()
    for fd in (process, *streams):
        poll.register(fd, select.POLLIN)
    open_streams = dict(streams)
    exited = False
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
        if not exited and any(fd == process for fd, _ in events):
            exited = True
            poll.unregister(process)


def _end(pid: int, ended: Ended) -> None:
    """Kills what is left of the child's process group and takes its status."""
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    try:
        _, status, usage = os.wait4(pid, 0)
    except ChildProcessError:  # somebody else in this process waits for all children
        return
    code = os.waitstatus_to_exitcode(status)
    ended.exit_code = code if code >= 0 else 128 - code
    ended.cpu_seconds = usage.ru_utime + usage.ru_stime


def _records(content: bytes, tag: bytes) -> tuple[list[tuple[bytes, int, bytes]], bool]:
    """The records of a result pipe, and whether anything else was in it (a cut last record is not)."""
    records: list[tuple[bytes, int, bytes]] = []
    at = 0
    while at < len(content):
        if len(records) == MAX_RECORDS:
            return records, True
        head = content[at : at + 17]
        if head[:8] != tag[: len(head)]:
            return records, True
        length = int.from_bytes(head[13:17], "little")
        if len(head) < 17 or at + 17 + length > len(content):
            return records, False
        records.append((head[8:9], int.from_bytes(head[9:13], "little"), content[at + 17 : at + 17 + length]))
        at += 17 + length
    return records, False
