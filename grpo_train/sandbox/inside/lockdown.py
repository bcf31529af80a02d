"""Drop all rights, in the right order, in a fresh interpreter that has not run model code yet.

System calls use ``_ctypes`` alone: importing ``ctypes`` would cost each child about six milliseconds.
"""

import _ctypes
import posix

TYPE_CHECKING = False  # ``typing`` itself would cost every child a millisecond
if TYPE_CHECKING:
    from typing import Any

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
SECCOMP_MODE_FILTER = 2
CLONE_NEWPID, CLONE_NEWNS = 0x20000000, 0x00020000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 2, 4, 8, 0x4000, 0x40000
CAPABILITY_VERSION_3 = 0x20080522
SIGKILL = 9

JOB_FD, RESULT_FD, RULESET_FD = 3, 4, 5


class LockdownError(Exception):
    """A layer failed: ``args`` are the name of the step and the reason."""


class _Long(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "l"


class _Pointer(_ctypes._SimpleCData):  # type: ignore[type-arg]
    _type_ = "z"


class _Function(_ctypes.CFuncPtr):
    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO
    _restype_ = _Long


_syscall = _Function(_ctypes.dlsym(_ctypes.dlopen(None, 0), "syscall"))  # type: ignore[arg-type]


def _call(step: str, number: int, *arguments: object) -> None:
    """Make a system call; passes ints as longs, bytes as pointers. Raises :class:`LockdownError`."""
    result = _syscall(_Long(number), *[_Long(a) if isinstance(a, int) else a for a in arguments])
    if result == -1:
        raise LockdownError(step, posix.strerror(_ctypes.get_errno()))


def lock_down(plan: "dict[str, Any]") -> None:
    """Apply every layer of ``plan`` to this process; return in the process that runs the program.

    With a pid namespace this is a forked child: the process that the parent started waits for it and exits with it.
    """
    number = plan["syscalls"]
    posix.closerange(RULESET_FD + 1, 1 << 16)
    posix.umask(0o077)
    try:
        # When memory runs out, the kernel must kill this program, not the trainer.
        fd = posix.open("/proc/self/oom_score_adj", posix.O_WRONLY)
        posix.write(fd, b"1000")
        posix.close(fd)
    except OSError:
        pass
    if plan["namespaces"] and plan["namespaces_as_root"]:
        _leave_namespaces(plan)
    if plan["uid"] is not None:
        try:
            posix.setgroups([])
            posix.setresgid(plan["uid"], plan["uid"], plan["uid"])
            posix.setresuid(plan["uid"], plan["uid"], plan["uid"])
        except OSError as error:
            raise LockdownError("separate uid", str(error)) from None
    if plan["namespaces"] and not plan["namespaces_as_root"]:
        _leave_namespaces(plan)
    try:
        if plan["tmpfs"]:
            posix.mkdir(plan["directory"], 0o700)
        posix.chdir(plan["directory"])
    except OSError as error:
        step = "tmpfs" if plan["tmpfs"] else "separate uid"
        raise LockdownError(step, f"cannot enter the working directory: {error}") from None
    _call("rlimits", number["prctl"], PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    if plan["namespaces"] & CLONE_NEWPID:
        _become_init()
        _call("rlimits", number["prctl"], PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0)
    _call("rlimits", number["capset"], CAPABILITY_VERSION_3.to_bytes(4, "little") + bytes(4), bytes(24))
    _call("rlimits", number["prctl"], PR_SET_DUMPABLE, 0, 0, 0, 0)
    _call("no_new_privs", number["prctl"], PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    for resource, limit in plan["limits"]:
        both = limit.to_bytes(8, "little") * 2
        _call("rlimits", number["prlimit64"], 0, resource, both, 0)
    if plan["landlock"]:
        _call("landlock", number["landlock_restrict_self"], RULESET_FD, plan["landlock_flags"])
        posix.close(RULESET_FD)
    if plan["seccomp"]:
        code = bytearray(plan["seccomp"])
        for offset in plan["seccomp_pid_offsets"]:
            code[offset : offset + 4] = posix.getpid().to_bytes(4, "little")
        filter_code = bytes(code)
        address = bytes(memoryview(_Pointer(filter_code)).cast("B"))
        program = (len(filter_code) // 8).to_bytes(8, "little") + address
        _call("seccomp", number["prctl"], PR_SET_SECCOMP, SECCOMP_MODE_FILTER, program, 0, 0)


def _leave_namespaces(plan: "dict[str, Any]") -> None:
    """Enter new namespaces; with a mount namespace, mount a tmpfs of limited size."""
    number, user, group = plan["syscalls"], posix.geteuid(), posix.getegid()
    if not plan["namespaces_as_root"]:
        # A process that was root is no longer dumpable, so that root owns its files in /proc.
        _call("namespaces", number["prctl"], PR_SET_DUMPABLE, 1, 0, 0, 0)
    _call("namespaces", number["unshare"], plan["namespaces"])
    if not plan["tmpfs"]:
        return
    options = f"mode=700,{plan['tmpfs_limits']}"
    if plan["namespaces_as_root"]:
        owner = user if plan["uid"] is None else plan["uid"]
        options += f",uid={owner},gid={owner}"
    else:
        try:  # a tmpfs accepts only ids that its namespace maps
            for name, text in (
                ("setgroups", "deny"),
                ("uid_map", f"{user} {user} 1"),
                ("gid_map", f"{group} {group} 1"),
            ):
                fd = posix.open(f"/proc/self/{name}", posix.O_WRONLY)
                posix.write(fd, text.encode())
                posix.close(fd)
        except OSError as error:
            raise LockdownError("tmpfs", str(error)) from None
    _call("tmpfs", number["mount"], b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    flags = MS_NOSUID | MS_NODEV | MS_NOEXEC
    _call("tmpfs", number["mount"], b"none", plan["tmpfs"].encode(), b"tmpfs", flags, options.encode())


def _become_init() -> None:
    """Fork into the new pid namespace; the caller's process stays behind to wait and never returns."""
    try:
        pid = posix.fork()
    except OSError as error:
        raise LockdownError("namespaces", f"fork: {error}") from None
    if pid == 0:
        return
    posix.closerange(0, RULESET_FD + 1)
    status = posix.waitpid(pid, 0)[1]
    code = posix.waitstatus_to_exitcode(status)
    posix._exit(code if code >= 0 else 128 - code)
