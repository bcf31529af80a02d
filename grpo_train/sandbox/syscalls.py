"""System calls that this process makes for its children, and their numbers on x86-64 and aarch64.

Called by number: Python builds made for old C libraries lack some of their wrappers.
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
    """The numbers on ``machine``; ValueError on one that is not in ``MACHINES``."""
    column = MACHINES.index(machine)
    return {name: both[column] for name, both in NUMBERS.items()}


@lru_cache(maxsize=1)
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def call(name: str, *arguments: int | bytes | None) -> int:
    """The result of a system call; ints are passed as longs, bytes as a pointer to them. Raises OSError."""
    passed = [ctypes.c_long(a) if isinstance(a, int) else ctypes.c_char_p(a) for a in arguments]
    result = int(_libc().syscall(ctypes.c_long(numbers(platform.machine())[name]), *passed))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
