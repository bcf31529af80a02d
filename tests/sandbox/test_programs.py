"""One program as a script: status, output, limits, environment, and its parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from grpo_train.sandbox import child, run_program, workspace
from grpo_train.sandbox.child import process_mark
from grpo_train.sandbox.interpreter import interpreter
from grpo_train.sandbox.syscalls import system_call
from tests.conftest import REPOSITORY
from tests.support.patience import eventually


@pytest.mark.parametrize(
    ("source", "status"),
    [
        ("print(1)", "ok"),
        ("import sys; sys.exit()", "ok"),
        ("raise SystemExit(0)", "ok"),
        ("import sys; sys.exit(3)", "runtime_error"),
        ("import sys; sys.exit('no')", "runtime_error"),
        ("x = (", "syntax_error"),
        ("def f():\nreturn 1", "syntax_error"),
        ("if 1:\n\tx = 1\n        y = 1", "syntax_error"),
        ("\0", "syntax_error"),
        ("x = '\ud800'", "syntax_error"),
        ("# coding: nothing\nprint(1)", "ok"),
        ("return 1", "syntax_error"),
        ("1 / 0", "runtime_error"),
        ("raise KeyboardInterrupt", "runtime_error"),
        ("raise MemoryError", "memory"),
        ("x = bytearray(1 << 40)", "memory"),
        ("import os; os._exit(0)", "killed"),
        ("import os; os.abort()", "killed"),
        ("while True: pass", "timeout"),
        ("while True: print('x' * 1000)", "output_limit"),
    ],
)
def test_status(source: str, status: str) -> None:
    assert run_program(source, cpu_seconds=1).status == status


def test_stdin_stdout_and_stderr() -> None:
    result = run_program("import sys\nprint(input() + '!')\nprint('e', file=sys.stderr)\n1 / 0", "a\nb")
    assert result.stdout == "a!\n"
    assert result.stderr.startswith("e\nTraceback")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n")
    assert "harness" not in result.stderr
    assert run_program("import sys; sys.stdout.buffer.write(b'\\xff')").stdout == "\ufffd"
    assert run_program("print('x' * 99)", max_output=100).status == "ok"
    cut = run_program("print('x' * 100)", max_output=100)
    assert (cut.status, len(cut.stdout)) == ("output_limit", 100)
    assert len(run_program("import sys\nsys.stderr.write('x' * 100_000 + 'end')").stderr) <= 8 << 10
    assert run_program("import sys\nsys.stderr.write('x' * 100_000 + 'end')").stderr.endswith("end")


def test_runs_share_a_hash_seed_but_no_directory() -> None:
    assert run_program("print(hash('a'))").stdout == run_program("print(hash('a'))").stdout
    assert (
        run_program("print(hash('a'))", hash_seed="1").stdout != run_program("print(hash('a'))", hash_seed="2").stdout
    )
    where = "import os; print(os.getcwd(), os.listdir())"
    first, second = run_program(where).stdout, run_program(where).stdout
    assert first != second
    assert first.endswith("[]\n")
    assert second.endswith("[]\n")


def test_the_clock_starts_at_fake_time() -> None:
    source = (
        "import datetime, time\nprint(datetime.datetime.now().year, datetime.date.today().year, int(time.time()) // 60,"
    )
    source += " time.gmtime().tm_year, time.time_ns() // 10**9 // 60, repr(datetime.datetime(2020, 1, 1)),"
    source += " type(datetime.datetime.now()) is type(datetime.datetime(1, 1, 1)), time.strftime('%Y'))"
    assert (
        run_program(source, fake_time=0.0).stdout
        == "1970 1970 0 1970 0 datetime.datetime(2020, 1, 1, 0, 0) True 1970\n"
    )
    assert run_program(source, fake_time=1e9).stdout.startswith("2001 2001 16666666 2001 ")


def test_memory_is_limited() -> None:
    assert run_program("x = bytearray(300 << 20)", memory=1 << 30).status == "ok"
    assert run_program("x = bytearray(300 << 20)", memory=256 << 20).status == "memory"


def test_a_parent_with_limits_can_run_programs() -> None:
    limits = (
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (900 << 20,) * 2)\nr.setrlimit(r.RLIMIT_NOFILE, (50, 50))\n"
    )
    script = limits + "from grpo_train.sandbox import *\nprint(run_program('print(1)').status)"
    command = [sys.executable, "-c", script]
    if os.geteuid() == 0:  # root could raise its limits again
        command = [sys.executable, "-m", "tests.sandbox.hostile.identity", "65534", *command]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True, env={**os.environ, "TMPDIR": "/tmp"}
    )
    assert done.stdout == "ok\n"


def test_programs_see_a_minimal_environment() -> None:
    source = "import os, sys\nprint(sorted(os.environ), sys.argv, sys.flags.no_site,"
    source += " [m for m in sys.modules if 'grpo' in m])"
    result = run_program(source)
    assert result.stdout == (
        "['HOME', 'LC_ALL', 'MALLOC_ARENA_MAX', 'OMP_NUM_THREADS', 'PATH', 'PYTHONHASHSEED', 'TMPDIR', 'TZ'] "
        "['program.py'] 1 []\n"
    )
    assert not any("site-packages" in path for path in interpreter().readable)


def test_a_slow_start_is_not_the_programs_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_train.sandbox.child.WALL_PER_CPU", 0.001)  # less than any interpreter needs to start
    assert run_program("import time; time.sleep(1000)", cpu_seconds=1).status == "timeout"


def test_programs_die_with_a_killed_parent(tmp_path: Path) -> None:
    script = "from grpo_train.sandbox import *\nprint(isolation().level, flush=True)\n"
    script += "run_program('import time; time.sleep(1000)', cpu_seconds=100)"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert parent.stdout is not None
    parent.stdout.readline()
    mark = process_mark(parent.pid).encode()
    eventually(lambda: marked(mark))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    eventually(lambda: not marked(mark))
    left = [path for path in tmp_path.iterdir() if path.name.startswith(workspace.PREFIX)]
    assert len(left) == 1
    subprocess.run([sys.executable, "-c", "from grpo_train.sandbox import *; run_program('1')"], check=True,
                   env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(workspace.PREFIX)]


def marked(mark: bytes) -> list[str]:
    found = []
    for entry in os.listdir("/proc"):
        try:
            if entry.isdecimal() and mark in Path(f"/proc/{entry}/cmdline").read_bytes():
                found.append(entry)
        except OSError:
            pass
    return found


def test_ignored_signals_are_not_inherited() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        printed = run_program("import signal; print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)").stdout
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert printed == "True\n"


def test_descriptors_are_not_inherited() -> None:
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        source = (
            "import os\nfor fd in range(3, 64):\n    try: os.fstat(fd)\n    except OSError: continue\n    print(fd)"
        )
        assert run_program(source).stdout == "4\n"  # the result pipe
    finally:
        os.close(read)
        os.close(write)


def test_a_forked_process_has_its_own_workspace() -> None:
    run_program("1")
    pid = os.fork()
    if pid == 0:
        ok = run_program("print(1)").stdout == "1\n" and workspace.workspace().pid == os.getpid()
        workspace.workspace().close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run_program("print(1)").stdout == "1\n"


def test_another_thread_may_reap_children() -> None:
    last = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert last.stdin is not None

    def reap() -> None:
        while os.waitpid(-1, 0)[0] != last.pid:
            pass

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        statuses = {run_program("print(1)").status for _ in range(10)}
    finally:
        last.stdin.close()
        thread.join()
        last.returncode = 0
    assert statuses == {"ok"}


def test_a_program_may_have_been_reaped_before_it_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(name: str, *arguments: int | bytes | None) -> int:
        if name == "pidfd_open":
            assert isinstance(arguments[0], int)
            os.waitpid(arguments[0], 0)
        return system_call(name, *arguments)

    monkeypatch.setattr(child, "system_call", late)
    result = run_program("print(1)")
    assert (result.status, result.stdout) == ("ok", "1\n")
