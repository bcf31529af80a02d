"""``python -m grpo_train.…`` without the seconds of importing torch: forks of a server that has it loaded.

A fork shows its own arguments and environment in /proc, so that it is found, signaled and named as a real process is.
Only a test of startup itself needs a real one (``grpo_train(..., real=True)``).
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

from tests.support.patience import PATIENCE

PRELOADED = [
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.api",
    "transformers.models.qwen2.modeling_qwen2",
    "transformers.models.qwen2.tokenization_qwen2",
    "peft",
    "grpo_train.cli",
    "grpo_train.train.loop",
    "grpo_train.train.worker",
    "grpo_train.evaluation.runner",
    "grpo_train.evaluation.workers.matches",
    "grpo_train.evaluation.workers.single_turn",
    "tests.support.two_processes",
]
TORCH = [
    "torch.distributed.run",
    "torch.distributed.elastic.multiprocessing.api",
    "torch.distributed.tensor",
    "torch._dynamo.convert_frame",
    "torch._inductor.utils",
    "pandas",
    "pyarrow.parquet",
    "PIL.Image",
    "tests.support.forked",
]
"""Nothing that reads the hub's address when it is imported."""
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)
ONLY_TORCH = forkserver.ForkServer()
"""Its forks import the libraries of the hub themselves, which read their settings then."""
ONLY_TORCH.set_forkserver_preload(TORCH)
_server_path = tuple(sys.path)
_choosing = threading.Lock()
ROOM = 32_768
"""Bytes of a server's environment that its forks write theirs into."""


class Fork:
    """``python -m ARGUMENTS`` in the background, in a session of its own; used as a ``Popen`` with one output."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._output, output = CONTEXT.Pipe(duplex=False)
        target = (list(arguments), dict(environment), str(folder), output)
        self._process = CONTEXT.Process(target=_background, args=target)
        with _server():
            self._process.start()
        output.close()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code or, negative, the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        """Output until the last process that has it open ends."""
        deadline = time.monotonic() + (1e6 if timeout is None else timeout)
        output = b""
        while not self._output.closed and wait([self._output], deadline - time.monotonic()):
            chunk = os.read(self._output.fileno(), 65_536)
            output += chunk
            if not chunk:
                self._output.close()
        self.wait(max(deadline - time.monotonic(), 0))
        return output.decode(), None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_forked(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    timeout: float,
    *,
    server: forkserver.ForkServer | None = None,
    stdin: Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """``python -m ARGUMENTS`` in ``folder``; modules of this project that it starts are forked, too.

    ``server``: one of :data:`ONLY_TORCH` or :func:`server_with`, for the settings of the hub's libraries.
    """
    with tempfile.TemporaryDirectory() as captured:
        out, error = Path(captured) / "out", Path(captured) / "error"
        target = (list(arguments), dict(environment), str(folder), str(out), str(error), str(stdin or os.devnull))
        process = CONTEXT.Process(target=_command, args=target)
        with _server(server):
            process.start()
        process.join(timeout)
        if process.exitcode is None:
            os.kill(process.pid or 0, signal.SIGUSR2)  # for its stacks
            process.join(PATIENCE)
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout, out.read_bytes(), error.read_bytes())
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in (out, error)]
        return subprocess.CompletedProcess(list(arguments), process.exitcode, *texts)


@contextmanager
def server_with(**variables: str) -> Iterator[forkserver.ForkServer]:
    """A server whose libraries have read these variables."""
    server = forkserver.ForkServer()
    server.set_forkserver_preload([*PRELOADED, "datasets"])
    with patch.dict(os.environ, variables), _server(server):
        pass
    try:
        yield server
    finally:
        with suppress(FileNotFoundError):  # its socket, which it may have removed
            server._stop()  # type: ignore[attr-defined]  # else it ends with this process


@contextmanager
def _server(server: forkserver.ForkServer | None = None) -> Iterator[None]:
    """The server that forks the next process, started with room for the environment of its forks."""
    server = server or forkserver._forkserver  # type: ignore[attr-defined]
    with _choosing:  # the environment and the function are those of the whole process
        usual = forkserver.connect_to_new_process
        os.environ["ROOM"] = "." * ROOM
        try:
            server.ensure_running()
        finally:
            del os.environ["ROOM"]
        forkserver.connect_to_new_process = server.connect_to_new_process
        try:
            yield
        finally:
            forkserver.connect_to_new_process = usual


def _background(arguments: list[str], environment: dict[str, str], folder: str, output: Connection) -> None:
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    _start(arguments, environment, folder)


def _command(arguments: list[str], environment: dict[str, str], folder: str, out: str, error: str, stdin: str) -> None:
    for descriptor, file in ((1, out), (2, error)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    faulthandler.register(signal.SIGUSR2, file=2)
    _start(arguments, environment, folder, stdin)


def _start(arguments: list[str], environment: dict[str, str], folder: str, stdin: str = os.devnull) -> NoReturn:
    opened = os.open(stdin, os.O_RDONLY)
    os.dup2(opened, 0)
    os.close(opened)
    os.chdir(folder)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    _become(["-m", *arguments], environment)


def _show(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Write arguments and environment where /proc reads them: into the strings that the server was started with."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    arguments_at, arguments_end, environment_at, environment_end = map(int, fields[45:49])  # man 5 proc: 48 to 51
    texts = (words, [f"{name}={value}" for name, value in environment.items()])
    places = ((arguments_at, arguments_end), (environment_at, environment_end))
    for strings, (start, end) in zip(texts, places, strict=True):
        shown = b"".join(os.fsencode(string) + b"\0" for string in strings)
        room = end - start - 1
        ctypes.memset(start, 0, room)
        ctypes.memmove(start, shown, min(len(shown), room))


def _become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Turn this process into ``python WORDS``, except for the imports."""
    os.environ.clear()
    os.environ.update(environment)
    _show([sys.executable, *words], environment)
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    words = list(words)[1:] if words[0] == "-u" else list(words)
    sys.argv = [words[1], *words[2:]]
    sys.orig_argv = [sys.executable, *words]
    code: Any = 0
    try:
        for entry in filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)):
            if entry not in _server_path:
                sys.path.insert(1, entry)
                if (customize := Path(entry, "sitecustomize.py")).exists():
                    runpy.run_path(str(customize))
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
        threading._shutdown()  # type: ignore[attr-defined]  # as the interpreter does at its end
        atexit._run_exitfuncs()
    except BaseException:
        import traceback

        code = traceback.format_exc()
    finally:  # even after an error: this process must never return to the code that forked it
        with suppress(OSError):  # nobody reads it any more
            if isinstance(code, str):
                print(code, file=sys.stderr)
        _flush()
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


def _flush() -> None:
    """Write what is printed, as far as somebody reads it: a real ``Popen`` starts a process without a reader, too."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):
            stream.flush()


_exec_child = subprocess.Popen._execute_child  # type: ignore[attr-defined]


def _execute_child(self: Any, args: Any, executable: Any, *rest: Any) -> None:
    """``Popen._execute_child`` that forks modules of this project. ``rest`` as in CPython 3.10 to 3.14."""
    words = [os.fspath(word) for word in args] if not isinstance(args, (str, bytes)) else []
    module = words[2:3] if words[1:2] == ["-m"] else words[3:4] if words[1:3] == ["-u", "-m"] else []
    if words[:1] != [sys.executable] or not module or not module[0].startswith("grpo_train."):
        _exec_child(self, args, executable, *rest)
        return
    names = ("preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo", "creationflags", "shell")
    given = dict(zip(names, rest, strict=False))
    p2cread, _, _, c2pwrite, _, errwrite = rest[len(names) : len(names) + 6]
    start_new_session = bool(rest[-2] if sys.version_info >= (3, 11) else rest[-1])
    _flush()
    self.pid = os.fork()
    if self.pid == 0:
        for source, descriptor in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)):
            if source not in (-1, descriptor):
                os.dup2(source, descriptor)
        # Redirected, not closed: inherited objects still close these numbers, which must not be reused before.
        null = os.open(os.devnull, os.O_RDWR)
        kept = {0, 1, 2, null, *given["pass_fds"]}
        for inherited in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
            try:
                os.dup2(null, inherited, inheritable=False)
            except OSError:
                pass
        if start_new_session:
            os.setsid()
        if given["cwd"]:
            os.chdir(given["cwd"])
        _become(words[1:], given["env"] or dict(os.environ))
    self._child_created = True
    self._close_pipe_fds(*rest[len(names) : len(names) + 6])
