"""System calls for child processes, by number (x86-64, aarch64).

Called by number because Python builds for old C libraries lack some wrappers.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import lru_cache

MACHINES = ("x86_64", "aarch64")
NUMBERS = {
    "memfd_create": (319, 279), "mount": (165, 40), "pidfd_open": (434, 434), "unshare": (272, 97), "prctl": (157, 167),
    "capset": (126, 91), "prlimit64": (302, 261), "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445), "landlock_restrict_self": (446, 446),
}  # fmt: skip


@lru_cache(maxsize=4)
def numbers(machine: str) -> dict[str, int]:
    """Numbers by name on ``machine``. Raises ValueError for machines that are not in ``MACHINES``."""
    column = MACHINES.index(machine)
    return {name: both[column] for name, both in NUMBERS.items()}


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def system_call(name: str, *arguments: int | bytes | None) -> int:
    """Make a system call and return its result. Passes ints as longs, bytes as pointers. Raises OSError."""
    passed = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    result = int(_libc().syscall(ctypes.c_long(numbers(platform.machine())[name]), *passed))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
