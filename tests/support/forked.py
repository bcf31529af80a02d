"""``python -m grpo_train.…`` without the seconds of importing torch: forks of a server that has it loaded.

For tests of the effects of a command. A fork keeps the server's environment in /proc, so a test of startup, of signals
or of finding a run's processes uses real processes (``grpo_train(..., real=True)``).
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

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
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(PRELOADED)


def run_forked(
    arguments: Sequence[str], environment: Mapping[str, str], folder: Path, timeout: float
) -> subprocess.CompletedProcess[str]:
    """``python -m ARGUMENTS`` in ``folder``; modules of this project that it starts are forked, too."""
    with tempfile.TemporaryDirectory() as captured:
        out, error = Path(captured) / "out", Path(captured) / "error"
        target = (list(arguments), dict(environment), str(folder), str(out), str(error))
        process = CONTEXT.Process(target=_command, args=target)
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            raise subprocess.TimeoutExpired(list(arguments), timeout, out.read_bytes(), error.read_bytes())
        texts = [file.read_text(errors="replace") if file.exists() else "" for file in (out, error)]
        return subprocess.CompletedProcess(list(arguments), process.exitcode, *texts)


def _command(arguments: list[str], environment: dict[str, str], folder: str, out: str, error: str) -> None:
    for descriptor, file in ((1, out), (2, error)):
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.chdir(folder)
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]
    _become(["-m", *arguments], environment)


def _become(words: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Turn this process into ``python WORDS``, except for the imports."""
    os.environ.clear()
    os.environ.update(environment)
    for name in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(name, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    words = list(words)[1:] if words[0] == "-u" else list(words)
    sys.argv = [words[1], *words[2:]]
    code: Any = 0
    try:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        code = ended.code
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    if isinstance(code, str):
        print(code, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            pass
    os._exit(code if isinstance(code, int) else 0 if code is None else 1)


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
    sys.stdout.flush()
    sys.stderr.flush()
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
