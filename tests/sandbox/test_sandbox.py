"""The sandbox's parts: the filter, the levels, the working space, one program's statuses."""

from __future__ import annotations

import os
import platform
import re
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from grpo_train.sandbox import (
    SandboxError,
    SandboxTooWeak,
    allow_weak,
    canary_hits,
    isolation,
    landlock,
    layers,
    probe,
    run_program,
    run_tests,
    seccomp,
    syscalls,
    worker_count,
    workspace,
)
from grpo_train.sandbox.canary import VARIABLE, canary
from grpo_train.sandbox.child import WALL_PER_CPU, process_mark
from grpo_train.sandbox.interpreter import interpreter
from tests.conftest import REPOSITORY

# --- the filter ----------------------------------------------------------------------------------------------------

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000


def verdict(machine: str, number: int, arguments: tuple[int, ...] = (), arch: int | None = None, pid: int = 77) -> int:
    """What the filter returns for a call: an interpreter of the BPF that it uses."""
    built = seccomp.build(machine)
    code = bytearray(built.code)
    for at in built.pid_offsets:
        code[at : at + 4] = pid.to_bytes(4, "little")
    arch = seccomp.AUDIT_ARCH[syscalls.MACHINES.index(machine)] if arch is None else arch
    data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    at, value = 0, 0
    while True:
        what, if_true, if_false, k = struct.unpack_from("<HBBI", code, 8 * at)
        at += 1
        if what == seccomp.LOAD:
            (value,) = struct.unpack_from("<I", data, k)
        elif what == seccomp.JUMP:
            at += k
        elif what == seccomp.RETURN:
            return int(k)
        else:
            true = {seccomp.EQUAL: value == k, seccomp.GREATER_EQUAL: value >= k, seccomp.ANY_BIT: bool(value & k)}[
                what
            ]
            at += if_true if true else if_false


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_the_filter_allows_its_list_and_nothing_else(machine: str) -> None:
    column = syscalls.MACHINES.index(machine)
    allowed = {numbers[column] for numbers in seccomp.ALLOWED.values()}
    conditional = {numbers[column] for numbers in seccomp.CONDITIONAL.values()}
    for number in range(600):
        if number in conditional:
            continue
        expected = ALLOW if number in allowed else ENOSYS if number > 450 or number == seccomp.CLONE3 else EPERM
        assert verdict(machine, number) == expected, number
    assert verdict(machine, seccomp.X32_BIT) == KILL
    assert verdict(machine, 0, arch=0x40000003) == KILL  # i386


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_conditional_calls_by_their_arguments(machine: str) -> None:
    column = syscalls.MACHINES.index(machine)

    def of(name: str, *arguments: int) -> int:
        return verdict(machine, seccomp.CONDITIONAL[name][column], arguments)

    thread = 0x3D0F00  # what glibc's pthread_create passes
    assert of("clone", thread) == ALLOW
    assert of("clone", 17) == EPERM
    for new in (0x20000, 0x80, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert of("clone", thread | new) == EPERM
    assert of("kill", 77, 9) == of("tgkill", 77, 78, 6) == ALLOW
    assert of("kill", 1, 9) == of("kill", (1 << 64) - 1, 9) == of("tgkill", 1, 1, 0) == of("tkill", 77, 9) == EPERM
    assert of("fcntl", 0, 3) == of("fcntl", 0, 1030) == ALLOW
    assert of("fcntl", 0, 8, 1) == of("fcntl", 0, 10, 9) == of("fcntl", 0, 15) == EPERM
    assert of("ioctl", 0, 0x5401) == ALLOW
    assert of("ioctl", 0, 0x5412) == of("ioctl", 0, 0x4004667F) == EPERM
    assert of("prctl", 15) == ALLOW
    assert {of("prctl", option) for option in (1, 4, 22, 38, 23)} == {EPERM}
    assert of("prlimit64", 0) == ALLOW
    assert of("prlimit64", 1) == EPERM
    assert of("socketpair", 1) == ALLOW
    assert of("socketpair", 2) == EPERM
    assert of("sendto", 3, 0, 0, 0, 0) == ALLOW
    assert of("sendto", 3, 0, 0, 0, 5) == of("sendto", 3, 0, 0, 0, 1 << 40) == EPERM


HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+) (\d+)"),
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+) (\d+)"),
}


@pytest.mark.parametrize("machine", [name for name, (path, _) in HEADERS.items() if path.exists()])
def test_the_numbers_are_the_kernels(machine: str) -> None:
    path, pattern = HEADERS[machine]
    kernels = {name: int(number) for name, number in re.findall(pattern, path.read_text())}
    kernels.setdefault("newfstatat", kernels.get("fstatat", -1))
    column = syscalls.MACHINES.index(machine)
    for name, numbers in {**seccomp.ALLOWED, **seccomp.CONDITIONAL, **syscalls.NUMBERS}.items():
        assert kernels.get(name) == numbers[column], name


# --- levels --------------------------------------------------------------------------------------------------------


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Lets a test change what this machine allows."""
    monkeypatch.delenv(probe.ALLOW_WEAK_VARIABLE, raising=False)
    monkeypatch.setattr(probe, "_found", None)
    monkeypatch.setattr(workspace, "_workspace", None)
    yield monkeypatch
    allow_weak(False)
    if workspace._workspace is not None:
        workspace._workspace.close()


def test_this_machine_holds_programs_in() -> None:
    here = isolation()
    assert here.level in ("full", "strong"), here.describe()
    assert run_program("pass").isolation == here.level


def test_without_namespaces_it_is_strong(found: pytest.MonkeyPatch) -> None:
    found.setattr(probe, "NAMESPACES", 1 << 30 | 1)  # no such namespace: what a kernel says that allows none
    here = isolation()
    assert here.level == "strong"
    assert "namespaces" in here.missing
    assert "unshare" in here.describe() or "Invalid" in here.describe()
    assert run_tests("def f(x): return x", ["assert f(1) == 1"]).isolation == "strong"


def test_without_landlock_it_refuses_until_allowed(found: pytest.MonkeyPatch) -> None:
    found.setattr(landlock, "abi", lambda: 0)
    with pytest.raises(SandboxTooWeak) as refused:
        run_program("print(1)")
    for part in ("medium", "no landlock", "sandbox.allow_weak", probe.ALLOW_WEAK_VARIABLE):
        assert part in str(refused.value)
    allow_weak(True)
    assert run_program("print(1)").isolation == "medium"
    allow_weak(False)
    found.setenv(probe.ALLOW_WEAK_VARIABLE, "1")
    assert run_program("print(1)").isolation == "medium"


def test_without_landlock_and_seccomp_it_is_weak(found: pytest.MonkeyPatch) -> None:
    found.setattr(landlock, "abi", lambda: 0)
    found.setattr(layers, "_filter", lambda machine: seccomp.Filter(b"\x06\0\0\0\0\0\xff\x7f", ()))  # allows everything
    with pytest.raises(SandboxTooWeak, match="weak"):
        isolation()
    allow_weak(True)
    here = isolation()
    assert (here.level, here.seccomp) == ("weak", False)
    assert "a socket or a signal was allowed" in here.missing["seccomp"]
    result = run_program("import os\nif os.fork() == 0:\n    import time; time.sleep(1000)\nprint(1)", cpu_seconds=1)
    assert (result.status, result.stdout) == ("ok", "1\n")  # and the child is killed with the rest


def test_a_layer_that_does_not_hold_is_not_believed(found: pytest.MonkeyPatch) -> None:
    everything = landlock.create_ruleset
    found.setattr(landlock, "create_ruleset", lambda read, listed, write, abi: everything(("/",), "/", "/", abi))
    with pytest.raises(SandboxTooWeak, match="a file outside could be opened"):
        isolation()


def test_root_without_its_capabilities_stays_who_it_is(found: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    found.setattr(probe.os, "geteuid", lambda: 0)
    found.setattr(probe, "_closed_to_others", lambda path: None)
    real = probe.run_isolated
    found.setattr(probe, "run_isolated", lambda tried, *a, **k: refused() if tried.uid else real(tried, *a, **k))
    here = isolation()
    assert here.uid is None
    assert "identity" in here.missing


def test_an_unknown_machine_is_an_error(found: pytest.MonkeyPatch) -> None:
    found.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(SandboxError, match="riscv64"):
        isolation()


def test_what_held_once_and_does_not_now_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = replace(isolation(), namespaces=1 << 30 | 1, namespaces_as_root=False)
    monkeypatch.setattr(probe, "_found", broken)
    with pytest.raises(SandboxError, match="held before"):
        run_program("print(1)")


@pytest.mark.parametrize("version", [1, 2, 3, 4, 5, 6])
def test_older_landlocks(version: int, tmp_path: Path) -> None:
    if landlock.abi() < version:
        pytest.skip("newer than this kernel's")
    os.close(landlock.create_ruleset(interpreter().readable, interpreter().stdlib, str(tmp_path), version))


# --- one program ---------------------------------------------------------------------------------------------------


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
        ("while True: print(1)", "output_limit"),
        ("import time; time.sleep(1000)", "timeout"),
    ],
)
def test_statuses(source: str, status: str) -> None:
    assert run_program(source, cpu_seconds=1).status == status


def test_output_error_and_input() -> None:
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


def test_what_two_runs_share_and_what_not() -> None:
    assert run_program("print(hash('a'))").stdout == run_program("print(hash('a'))").stdout
    assert (
        run_program("print(hash('a'))", hash_seed="1").stdout != run_program("print(hash('a'))", hash_seed="2").stdout
    )
    where = "import os; print(os.getcwd(), os.listdir())"
    first, second = run_program(where).stdout, run_program(where).stdout
    assert first != second
    assert first.endswith("[]\n")
    assert second.endswith("[]\n")


def test_the_clock_starts_where_it_is_told() -> None:
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


def test_memory_is_limited_by_its_parameter() -> None:
    assert run_program("x = bytearray(300 << 20)", memory=1 << 30).status == "ok"
    assert run_program("x = bytearray(300 << 20)", memory=256 << 20).status == "memory"


def test_a_process_that_is_limited_itself_runs_programs() -> None:
    limits = (
        "import resource as r\nr.setrlimit(r.RLIMIT_AS, (900 << 20,) * 2)\nr.setrlimit(r.RLIMIT_NOFILE, (50, 50))\n"
    )
    script = limits + "from grpo_train.sandbox import *\nprint(run_program('print(1)').status)"
    command = [sys.executable, "-c", script]
    if os.geteuid() == 0:  # root may raise its limits again
        command = [sys.executable, "-m", "tests.sandbox.hostile.identity", "65534", *command]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, check=True, env={**os.environ, "TMPDIR": "/tmp"}
    )
    assert done.stdout == "ok\n"


def test_programs_know_little_of_the_machine() -> None:
    source = "import os, sys\nprint(sorted(os.environ), sys.argv, sys.flags.no_site,"
    source += " [m for m in sys.modules if 'grpo' in m])"
    result = run_program(source)
    assert result.stdout == (
        "['HOME', 'LC_ALL', 'MALLOC_ARENA_MAX', 'OMP_NUM_THREADS', 'PATH', 'PYTHONHASHSEED', 'TMPDIR', 'TZ'] "
        "['program.py'] 1 []\n"
    )
    assert not any("site-packages" in path for path in interpreter().readable)


def test_the_wall_ends_what_sleeps() -> None:
    began = time.monotonic()
    assert run_program("import time; time.sleep(1000)", cpu_seconds=1).status == "timeout"
    assert time.monotonic() - began < WALL_PER_CPU + 1


def test_a_trainer_that_is_killed_takes_its_programs_along(tmp_path: Path) -> None:
    script = "from grpo_train.sandbox import *\nprint(isolation().level, flush=True)\n"
    script += "run_program('import time; time.sleep(1000)', cpu_seconds=100)"
    trainer = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert trainer.stdout is not None
    trainer.stdout.readline()
    mark = process_mark(trainer.pid).encode()
    assert wait_for(lambda: len(marked(mark)) > 0)
    trainer.kill()
    trainer.wait()
    trainer.stdout.close()
    assert wait_for(lambda: marked(mark) == [])
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


def wait_for(condition: object, seconds: float = 20) -> bool:
    assert callable(condition)
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_signals_that_the_trainer_ignores_are_not_ignored_inside() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        printed = run_program("import signal; print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)").stdout
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert printed == "True\n"


def test_descriptors_of_the_trainer_are_not_inherited() -> None:
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


def test_a_forked_trainer_makes_its_own_space() -> None:
    run_program("1")
    pid = os.fork()
    if pid == 0:
        ok = run_program("print(1)").stdout == "1\n" and workspace.workspace().pid == os.getpid()
        workspace.workspace().close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert run_program("print(1)").stdout == "1\n"


def test_somebody_elses_wait_for_children_does_no_harm() -> None:
    stop = threading.Event()

    def reap() -> None:
        while not stop.is_set():
            try:
                os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                time.sleep(0.0001)

    thread = threading.Thread(target=reap)
    thread.start()
    try:
        statuses = {run_program("print(1)").status for _ in range(20)}
    finally:
        stop.set()
        thread.join()
    assert statuses == {"ok"}


def test_workers_are_the_cores_of_this_process() -> None:
    assert worker_count() == len(os.sched_getaffinity(0))


# --- the secret ----------------------------------------------------------------------------------------------------


def test_the_secret_is_seen_however_it_is_shown() -> None:
    import base64

    secret = canary()
    assert os.environ[VARIABLE] == secret
    assert not canary_hits("nothing")
    for shown in (secret, f"x{secret}y", secret[::-1], secret.encode().hex()):
        assert canary_hits(shown)
    for before in ("", "a", "ab"):
        assert canary_hits(base64.b64encode((before + secret).encode()))
    assert run_program(f"print({secret!r})").denials == {"canary": 1}
    assert run_tests(f"def f(): return {secret!r}", ["assert f() == 1"]).denials == {"canary": 1}


# --- the working space ---------------------------------------------------------------------------------------------


def test_deep_trees_are_removed(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d", dir_fd=here)
        deeper = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(os.open("file", os.O_CREAT, dir_fd=here))
    os.close(here)
    (tmp_path / "closed").mkdir(0o300)
    (tmp_path / "closed" / "file").write_text("x")
    outside = tmp_path.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "kept").write_text("x")
    (tmp_path / "link").symlink_to(outside)
    assert workspace.empty(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    assert (outside / "kept").exists()


def test_emptying_ends_in_time_and_goes_on_later(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "file").write_text("x")
    assert not workspace.empty(str(tmp_path), time.monotonic() - 1)
    assert workspace.empty(str(tmp_path))


def test_files_in_memory_are_limited_and_leave_the_disk_alone() -> None:
    if not isolation().box:
        pytest.skip("no mounts here")
    source = "import errno\ndef fill(write):\n    for i in range(10_000):\n        try: write(i)\n"
    source += "        except OSError as error: return i, errno.errorcode[error.errno]\n"
    many = run_program(source + "print(*fill(lambda i: open(f'{i}', 'w').close()))").stdout.split()
    assert many[1] == "ENOSPC"
    assert 4000 < int(many[0]) < layers.MAX_BOX_FILES
    big = run_program(source + "print(*fill(lambda i: open(f'{i}', 'wb').write(b'x' * (1 << 20))))").stdout.split()
    assert big == [str(layers.MAX_BOX_BYTES >> 20), "ENOSPC"]
    written = sum(len(files) for _, _, files in os.walk(workspace.workspace().root))
    assert written == 1  # the secret


def test_a_directory_is_used_again_only_untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_found", replace(isolation(), box=False))
    source = "import os; print(os.stat('.').st_ino)"
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run_program, source).result().stdout
        assert pool.submit(run_program, source).result().stdout == first
        for touch in (
            "open('x', 'w').close(); os.unlink('x')",
            "os.mkdir('d'); os.rmdir('d')",
            "open('../x', 'w').close()",
            "here = os.getcwd(); os.chdir('..'); os.rmdir(here); os.mkdir(here)",
        ):
            pool.submit(run_program, source + "; " + touch).result()
            after = pool.submit(run_program, "import os; print(os.listdir('.'), len(os.listdir('..')))").result()
            assert after.stdout == "[] 1\n"


def test_a_space_that_was_cleaned_away_is_made_again() -> None:
    import shutil

    run_program("1")
    shutil.rmtree(workspace.workspace().root)
    assert run_program("print(1)").stdout == "1\n"
    slot = workspace.workspace().take(isolation().landlock_abi, isolation().uid, isolation().box)
    workspace.workspace().give_back(slot)
    shutil.rmtree(slot.path)
    assert run_program("print(1)").stdout == "1\n"
