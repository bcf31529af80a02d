"""Tracing of all system calls of an action that change the disk, and SIGKILL before any of them. Linux, by ptrace.

It sees writes by Python, torch's C++ and safetensors' Rust; the action runs in a fork of this process.
:mod:`tests.support.killing` does the same on any platform, for Python's writes only.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import stat
from collections.abc import Callable
from dataclasses import dataclass

_TRACEME, _SYSCALL, _SETOPTIONS, _GET_SYSCALL_INFO = 0, 24, 0x4200, 0x420E
_TRACESYSGOOD, _EXITKILL = 1, 0x100000
_SYSCALL_STOP = signal.SIGTRAP | 0x80
_ENTRY = 1
_MAP_SHARED, _PROT_WRITE = 1, 2

_NUMBERS = {
    "x86_64": {
        1: "write", 18: "pwrite64", 20: "writev", 296: "pwritev", 328: "pwritev2", 40: "sendfile",
        326: "copy_file_range", 74: "fsync", 75: "fdatasync", 76: "truncate", 77: "ftruncate", 285: "fallocate",
        82: "rename", 264: "renameat", 316: "renameat2", 83: "mkdir", 258: "mkdirat", 84: "rmdir", 87: "unlink",
        263: "unlinkat", 88: "symlink", 266: "symlinkat", 86: "link", 265: "linkat", 85: "creat", 2: "open",
        257: "openat", 437: "openat2", 9: "mmap", 56: "clone", 57: "fork", 58: "vfork", 435: "clone3",
        425: "io_uring_setup",
    },
    "aarch64": {
        64: "write", 68: "pwrite64", 66: "writev", 70: "pwritev", 287: "pwritev2", 71: "sendfile",
        285: "copy_file_range", 82: "fsync", 83: "fdatasync", 45: "truncate", 46: "ftruncate", 47: "fallocate",
        38: "renameat", 276: "renameat2", 34: "mkdirat", 35: "unlinkat", 36: "symlinkat", 37: "linkat",
        56: "openat", 437: "openat2", 222: "mmap", 220: "clone", 435: "clone3", 425: "io_uring_setup",
    },
}  # fmt: skip
_UNSEEN = ("clone", "fork", "vfork", "clone3", "io_uring_setup")
"""Calls through which writes would go unseen: none may occur."""
_BY_DESCRIPTOR = ("write", "pwrite64", "writev", "pwritev", "pwritev2", "fsync", "fdatasync", "ftruncate", "fallocate")
_AT = {"renameat": (0, 2), "renameat2": (0, 2), "mkdirat": (0,), "unlinkat": (0,), "openat": (0,)}
"""Indices of directory arguments, each followed by a name."""
_CWD = 2**64 - 100
_NAMED = {"rename": (0, 1), "mkdir": (0,), "rmdir": (0,), "unlink": (0,), "open": (0,), "creat": (0,), "truncate": (0,)}


@dataclass(frozen=True)
class Touch:
    """One system call that changes the disk or makes a change durable."""

    call: str
    """Name without ``at``: ``openat`` is ``open``, which counts only if it creates a file."""
    path: str
    to: str = ""
    """Target of a rename."""


def trace(action: Callable[[], None]) -> list[Touch]:
    """Touches of an action in order. The action runs in a fork."""
    touches: list[Touch] = []
    code = _follow(action, lambda touch: bool(touches.append(touch)))
    assert code == 0, f"the action ended with {code}"
    return touches


def killed_before(n: int, action: Callable[[], None]) -> None:
    """Run an action in a fork and kill it by SIGKILL right before its n-th touch (0, 1, …)."""
    remaining = n

    def is_nth(touch: Touch) -> bool:
        nonlocal remaining
        remaining -= 1
        return remaining < 0

    code = _follow(action, is_nth)
    assert code == -signal.SIGKILL, f"the action ended with {code} before touch {n}"


class _Info(ctypes.Structure):
    """``struct ptrace_syscall_info`` at syscall entry."""

    _fields_ = [
        ("op", ctypes.c_uint8), ("pad", ctypes.c_uint8 * 3), ("arch", ctypes.c_uint32),
        ("instruction", ctypes.c_uint64), ("stack", ctypes.c_uint64), ("number", ctypes.c_uint64),
        ("arguments", ctypes.c_uint64 * 6),
    ]  # fmt: skip


_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
_libc.ptrace.restype = ctypes.c_long


def _ptrace(request: int, pid: int, address: int, data: int) -> None:
    if _libc.ptrace(request, pid, address, data) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"ptrace: {os.strerror(number)}")


def _follow(action: Callable[[], None], kill_now: Callable[[Touch], bool]) -> int:
    """Run an action in a traced fork, calling ``kill_now`` for each touch; returns its exit code, -9 if killed."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            _ptrace(_TRACEME, 0, 0, 0)
            os.kill(os.getpid(), signal.SIGSTOP)
            action()
            code = 0
        finally:
            os._exit(code)
    os.waitpid(pid, 0)
    _ptrace(_SETOPTIONS, pid, 0, _TRACESYSGOOD | _EXITKILL)
    info, signal_number = _Info(), 0
    while True:
        _ptrace(_SYSCALL, pid, 0, signal_number)
        _, status = os.waitpid(pid, 0)
        if not os.WIFSTOPPED(status):
            return os.waitstatus_to_exitcode(status)
        signal_number = 0
        if os.WSTOPSIG(status) != _SYSCALL_STOP:
            signal_number = os.WSTOPSIG(status)
            continue
        _ptrace(_GET_SYSCALL_INFO, pid, ctypes.sizeof(info), ctypes.addressof(info))
        if info.op == _ENTRY and (touch := _touch(pid, info)) and kill_now(touch):
            os.kill(pid, signal.SIGKILL)  # the call is not executed
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _touch(pid: int, info: _Info) -> Touch | None:
    """The touch made by a system call; None for any other call."""
    name = _NUMBERS[platform.machine()].get(info.number)
    arguments = list(info.arguments)
    if name is None:
        return None
    assert name not in _UNSEEN, f"{name} is not traced"
    if name == "mmap":
        shared = arguments[3] & _MAP_SHARED and arguments[2] & _PROT_WRITE and ctypes.c_int(arguments[4]).value >= 0
        assert not shared, "a file is written through a mapping, which is not traced"
        return None
    if name in ("open", "openat") and not arguments[1 if name == "open" else 2] & os.O_CREAT:
        return None
    if name in _BY_DESCRIPTOR:
        path = os.readlink(f"/proc/{pid}/fd/{arguments[0]}")
        mode = os.stat(f"/proc/{pid}/fd/{arguments[0]}").st_mode
        on_disk = (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and not path.startswith("/proc/")
        return Touch(name, path) if on_disk else None
    if name in _AT:
        paths = [_path(pid, arguments[index], arguments[index + 1]) for index in _AT[name]]
        return Touch(name.removesuffix("2").removesuffix("at"), *paths)
    if name in ("symlink", "symlinkat"):
        folder, text = (arguments[1], arguments[2]) if name == "symlinkat" else (_CWD, arguments[1])
        return Touch("symlink", _path(pid, folder, text))
    if name in _NAMED:
        return Touch(name, *(_path(pid, _CWD, arguments[index]) for index in _NAMED[name]))
    raise AssertionError(f"{name} is not traced")


def _path(pid: int, folder: int, text: int) -> str:
    """A path argument: a string in the process's memory, relative to a directory descriptor."""
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        memory.seek(text)
        name = b""
        while b"\0" not in name:
            name += memory.read(min(256, 4096 - (text + len(name)) % 4096))  # never across a page boundary
    number = ctypes.c_int(folder & 0xFFFFFFFF).value
    base = os.readlink(f"/proc/{pid}/cwd" if number == -100 else f"/proc/{pid}/fd/{number}")
    return os.path.join(base, os.fsdecode(name.partition(b"\0")[0]))
