"""Seccomp filter: the system calls that programs may make, as raw BPF for x86-64 and aarch64.

An allow-list of what CPython needs. Other calls fail with EPERM; calls newer than the list, and ``clone3``, fail with
ENOSYS, so that the C library falls back to an older call. A call of a foreign architecture (32-bit, x32) kills the
process. The filter denies what Landlock does not cover: network, processes, signals to others, namespaces, and the
modes, owners, times and attributes of files, which can be changed without write permission.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from grpo_train.sandbox.syscalls import MACHINES

# name: (x86-64, aarch64). Allowed with any arguments.
ALLOWED: dict[str, tuple[int | None, int | None]] = {
    "read": (0, 63), "write": (1, 64), "openat": (257, 56), "close": (3, 57), "newfstatat": (262, 79),
    "fstat": (5, 80), "lseek": (8, 62), "mmap": (9, 222), "munmap": (11, 215), "brk": (12, 214), "futex": (202, 98),
    "getdents64": (217, 61), "mprotect": (10, 226), "mremap": (25, 216), "madvise": (28, 233),
    "readv": (19, 65), "writev": (20, 66), "pread64": (17, 67), "pwrite64": (18, 68), "preadv": (295, 69),
    "pwritev": (296, 70), "close_range": (436, 436), "sendfile": (40, 71), "copy_file_range": (326, 285),
    "open": (2, None), "stat": (4, None), "lstat": (6, None), "statx": (332, 291), "access": (21, None),
    "faccessat": (269, 48), "faccessat2": (439, 439), "readlink": (89, None), "readlinkat": (267, 78),
    "getdents": (78, None), "getcwd": (79, 17), "chdir": (80, 49), "fchdir": (81, 50), "mkdir": (83, None),
    "mkdirat": (258, 34), "rmdir": (84, None), "unlink": (87, None), "unlinkat": (263, 35), "rename": (82, None),
    "renameat": (264, 38), "renameat2": (316, 276), "link": (86, None), "linkat": (265, 37), "symlink": (88, None),
    "symlinkat": (266, 36), "umask": (95, 166), "ftruncate": (77, 46), "fallocate": (285, 47), "fsync": (74, 82),
    "fdatasync": (75, 83), "flock": (73, 32), "statfs": (137, 43), "fstatfs": (138, 44), "dup": (32, 23),
    "dup2": (33, None), "dup3": (292, 24), "pipe": (22, None), "pipe2": (293, 59), "select": (23, None),
    "pselect6": (270, 72), "poll": (7, None), "ppoll": (271, 73), "epoll_create": (213, None),
    "epoll_create1": (291, 20), "epoll_ctl": (233, 21), "epoll_wait": (232, None), "epoll_pwait": (281, 22),
    "epoll_pwait2": (441, 441), "eventfd": (284, None), "eventfd2": (290, 19), "recvfrom": (45, 207),
    "rt_sigaction": (13, 134), "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "rt_sigpending": (127, 136),
    "rt_sigtimedwait": (128, 137), "rt_sigsuspend": (130, 133), "sigaltstack": (131, 132),
    "restart_syscall": (219, 128), "pause": (34, None), "alarm": (37, None), "getitimer": (36, 102),
    "setitimer": (38, 103), "nanosleep": (35, 101), "clock_nanosleep": (230, 115), "clock_gettime": (228, 113),
    "clock_getres": (229, 114), "gettimeofday": (96, 169), "time": (201, None), "times": (100, 153),
    "set_robust_list": (273, 99), "rseq": (334, 293), "set_tid_address": (218, 96), "sched_yield": (24, 124),
    "sched_getaffinity": (204, 123), "sched_getparam": (143, 121), "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125), "sched_get_priority_min": (147, 126), "getcpu": (309, 168),
    "membarrier": (324, 283), "getpid": (39, 172), "getppid": (110, 173), "gettid": (186, 178), "getuid": (102, 174),
    "geteuid": (107, 175), "getgid": (104, 176), "getegid": (108, 177), "getresuid": (118, 148),
    "getresgid": (120, 150), "getgroups": (115, 158), "getpgid": (121, 155), "getpgrp": (111, None),
    "getsid": (124, 156), "getpriority": (140, 141), "getrlimit": (97, 163), "setrlimit": (160, 164),
    "getrusage": (98, 165), "capget": (125, 90), "uname": (63, 160), "sysinfo": (99, 179), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94), "wait4": (61, 260), "waitid": (247, 95),
}  # fmt: skip

# Allowed with some arguments, see ``_conditional``.
CONDITIONAL = {
    "clone": (56, 220), "kill": (62, 129), "tkill": (200, 130), "tgkill": (234, 131), "ioctl": (16, 29),
    "fcntl": (72, 25), "prctl": (157, 167), "prlimit64": (302, 261), "socketpair": (53, 199), "sendto": (44, 206),
}  # fmt: skip
CLONE3 = 435
NEWEST_KNOWN = 450

AUDIT_ARCH = (0xC000003E, 0xC00000B7)
X32_BIT = 0x40000000

Step = tuple[int, int, int, int]
"""A BPF instruction: code, jump offset if true, jump offset if false, operand."""
LOAD, JUMP, EQUAL, GREATER_EQUAL, ANY_BIT, RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x06
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x00050001, 0x00050026
NUMBER_OFFSET, ARCH_OFFSET, ARGUMENTS_OFFSET = 0, 4, 16
ALLOWING: list[Step] = [(RETURN, 0, 0, ALLOW)]

CLONE_THREAD = 0x00010000
CLONE_NEW_ANYTHING = 0x7E020080  # user, pid, net, ipc, uts, cgroup, mount and time namespaces
# TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
IOCTLS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
# F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_SETLK, F_SETLKW, F_DUPFD_CLOEXEC, F_SETPIPE_SZ, F_GETPIPE_SZ,
# and the open-file-description locks. Not F_SETOWN and F_SETSIG: together they send any signal to any process.
FCNTLS = (0, 1, 2, 3, 4, 5, 6, 7, 36, 37, 38, 1030, 1032)
PRCTLS = (15, 16)  # PR_SET_NAME, PR_GET_NAME
AF_UNIX = 1
OWN_PID = 0xFFFFFFFF
"""Placeholder that each process replaces with its own pid."""


@dataclass(frozen=True)
class Filter:
    """A BPF program."""

    code: bytes
    """The instructions, 8 bytes each."""
    pid_offsets: tuple[int, ...]
    """Offsets at which the process writes its pid (4 bytes, little-endian) before it installs the filter."""


@lru_cache(maxsize=2)
def build(machine: str) -> Filter:
    """Build the filter for one of ``MACHINES``. Raises ValueError for other machines."""
    column = MACHINES.index(machine)
    actions = {number: ALLOWING for both in ALLOWED.values() if (number := both[column]) is not None}
    actions |= {both[column]: _conditional(name) for name, both in CONDITIONAL.items()}
    actions[CLONE3] = [(RETURN, 0, 0, ENOSYS)]
    program: list[Step] = [
        (LOAD, 0, 0, ARCH_OFFSET),
        (EQUAL, 1, 0, AUDIT_ARCH[column]),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, NUMBER_OFFSET),
        (GREATER_EQUAL, 0, 1, X32_BIT),  # numbers that do not exist on aarch64
        (RETURN, 0, 0, KILL_PROCESS),
        *_search(_intervals(actions)),
    ]
    pid_offsets = tuple(8 * i + 4 for i, step in enumerate(program) if step[0] == EQUAL and step[3] == OWN_PID)
    return Filter(b"".join(struct.pack("<HBBI", *step) for step in program), pid_offsets)


def _intervals(actions: dict[int, list[Step]]) -> list[tuple[int, list[Step]]]:
    """First call number of each action, ascending; unlisted calls get EPERM, newer ones ENOSYS."""
    intervals: list[tuple[int, list[Step]]] = []
    for number in range(NEWEST_KNOWN + 1):
        action = actions.get(number, [(RETURN, 0, 0, EPERM)])
        if not intervals or intervals[-1][1] != action:
            intervals.append((number, action))
    return [*intervals, (NEWEST_KNOWN + 1, [(RETURN, 0, 0, ENOSYS)])]


def _search(intervals: list[tuple[int, list[Step]]]) -> list[Step]:
    """A binary search for the call's interval.

    The kernel runs the filter once for every call number when it is installed; a linear search would cost each child a
    third of a millisecond.
    """
    if len(intervals) == 1:
        return intervals[0][1]
    middle = len(intervals) // 2
    below, above = _search(intervals[:middle]), _search(intervals[middle:])
    pivot = intervals[middle][0]
    if len(below) < 256:
        return [(GREATER_EQUAL, len(below), 0, pivot), *below, *above]
    return [(GREATER_EQUAL, 0, 1, pivot), (JUMP, 0, 0, len(below)), *below, *above]


def _conditional(name: str) -> list[Step]:
    """Instructions that decide about one call by its arguments; every path returns."""
    if name == "clone":
        flags = _low(0)
        return [
            (LOAD, 0, 0, flags),
            (ANY_BIT, 2, 0, CLONE_NEW_ANYTHING),
            (ANY_BIT, 0, 1, CLONE_THREAD),
            (RETURN, 0, 0, ALLOW),
            (RETURN, 0, 0, EPERM),
        ]
    if name in ("kill", "tgkill"):
        return _argument_in(0, (OWN_PID,))
    if name == "tkill":
        return [(RETURN, 0, 0, EPERM)]
    if name == "ioctl":
        return _argument_in(1, IOCTLS)
    if name == "fcntl":
        return _argument_in(1, FCNTLS)
    if name == "prctl":
        return _argument_in(0, PRCTLS)
    if name == "prlimit64":
        return _argument_in(0, (0,))
    if name == "socketpair":
        return _argument_in(0, (AF_UNIX,))
    # sendto without an address: the data stays in the socket pair
    return [
        (LOAD, 0, 0, _low(4)),
        (EQUAL, 0, 3, 0),
        (LOAD, 0, 0, _low(4) + 4),
        (EQUAL, 0, 1, 0),
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, EPERM),
    ]


def _low(argument: int) -> int:
    """Offset of the low half of an argument; the kernel reads these arguments as 32-bit numbers."""
    return ARGUMENTS_OFFSET + 8 * argument


def _argument_in(argument: int, values: tuple[int, ...]) -> list[Step]:
    steps = [(LOAD, 0, 0, _low(argument))]
    for value in values:
        steps += [(EQUAL, 0, 1, value), (RETURN, 0, 0, ALLOW)]
    return [*steps, (RETURN, 0, 0, EPERM)]
