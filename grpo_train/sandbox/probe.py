"""What of the sandbox holds on this machine: found out by doing it, once per process.

Below ``strong`` nothing runs unless weaker isolation was asked for.
"""

from __future__ import annotations

import ast
import os
import platform
import stat
import threading
from dataclasses import replace
from pathlib import Path

from grpo_train.sandbox import landlock, syscalls
from grpo_train.sandbox.interpreter import interpreter
from grpo_train.sandbox.layers import NAMESPACES, NEW_USER, Isolation, run_isolated
from grpo_train.sandbox.results import TOO_WEAK, SandboxError, SandboxTooWeak
from grpo_train.sandbox.workspace import workspace

ALLOW_WEAK_VARIABLE = "GRPO_ALLOW_WEAK_SANDBOX"
UNUSED_UID = 65534

_guard = threading.Lock()
_found: Isolation | None = None
_allow_weak = False


def _after_fork() -> None:
    """Another thread of the parent may have held the lock when it forked."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def allow_weak(allowed: bool) -> None:
    """Lets programs run behind less than ``strong`` (config key ``sandbox.allow_weak``)."""
    global _allow_weak
    _allow_weak = allowed


def isolation() -> Isolation:
    """What is in force here. Raises :class:`SandboxTooWeak` below ``strong`` unless weaker was allowed, and
    :class:`SandboxError` where no program can be run at all."""
    global _found
    with _guard:
        if _found is None:
            _found = probe()
    if _found.level in TOO_WEAK and not (_allow_weak or os.environ.get(ALLOW_WEAK_VARIABLE) == "1"):
        raise SandboxTooWeak(
            f"programs of the model would run behind too little: {_found.describe()}. Needed are seccomp and Landlock "
            f"(Linux 5.13 or newer with CONFIG_SECURITY_LANDLOCK, on x86-64 or aarch64, in a container whose own "
            f"seccomp profile allows both). To run them all the same set sandbox.allow_weak: true in the config, call "
            f"allow_weak(True), or set {ALLOW_WEAK_VARIABLE}=1; every result then says {_found.level!r}."
        )
    return _found


def probe() -> Isolation:
    """Tries the strongest layers that this machine may allow, and gives up what fails, one layer at a time."""
    machine = platform.machine()
    if machine not in syscalls.MACHINES:
        raise SandboxError(f"the sandbox knows the system calls of {', '.join(syscalls.MACHINES)}, not of {machine}")
    abi = landlock.abi()
    missing = {} if abi else {"landlock": "the kernel has none, or it is off"}
    uid = UNUSED_UID if os.geteuid() == 0 else None
    closed = _closed_to_others(interpreter().stdlib) or _closed_to_others(workspace().root)
    if uid is not None and closed:
        uid, missing = None, {**missing, "unused uid": f"only root may enter {closed}, which programs need"}
    tried = Isolation(NAMESPACES | NEW_USER, False, uid, True, abi, True, missing)
    for _ in range(8):
        step, reason = _try(tried)
        if step is None:
            return tried
        weaker = _without(tried, step, reason)
        if weaker is None:
            raise SandboxError(f"no program can be run in the sandbox: {step}: {reason}")
        tried = weaker
    raise SandboxError(f"no program can be run in the sandbox: {tried.describe()}")


def _closed_to_others(path: str) -> str | None:
    """The first directory on the way to ``path`` that an unknown user may not enter."""
    for directory in (*reversed(Path(path).parents), Path(path)):
        if not directory.stat().st_mode & stat.S_IXOTH:
            return str(directory)
    return None


def _without(tried: Isolation, step: str, reason: str) -> Isolation | None:
    missing = {**tried.missing, step: reason}
    if step == "identity" and tried.uid is not None:
        return replace(tried, uid=None, missing=missing)
    if step == "box" and tried.box:
        return replace(tried, box=False, missing=missing)
    if step == "namespaces" and tried.namespaces & NEW_USER and os.geteuid() == 0:
        return replace(tried, namespaces=NAMESPACES, namespaces_as_root=True)
    if step == "namespaces" and tried.namespaces:
        return replace(tried, namespaces=0, namespaces_as_root=False, box=False, missing=missing)
    if step == "landlock" and tried.landlock_abi:
        return replace(tried, landlock_abi=0, missing=missing)
    if step == "seccomp" and tried.seccomp:
        return replace(tried, seccomp=False, missing=missing)
    return None


ATTEMPTS = """
import errno, os, socket
def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, "?")
    return "done"
import bisect, random, statistics
with open("mine", "w") as file:
    file.write("x")
print({"socket": attempt(socket.socket), "signal": attempt(os.kill, PARENT, 0), "read": attempt(open, CANARY),
       "write": attempt(open, CANARY + ".new", "w"), "first": os.getpid() == 1})
"""


def _try(tried: Isolation) -> tuple[str | None, str]:
    """Runs a program behind these layers that tries to get around each; the layer that does not hold, and why."""
    path = workspace().canary
    source = ATTEMPTS.replace("PARENT", str(os.getpid())).replace("CANARY", repr(path))
    try:
        ended = run_isolated(tried, {"mode": "program", "source": source}, cpu_seconds=5, max_output=1 << 16)
    except OSError as error:
        if "landlock" in str(error):
            return "landlock", str(error)
        # Without its capabilities root can neither give files to another user nor end what runs as one.
        refused = isinstance(error, PermissionError) and tried.uid is not None
        return "identity" if refused else "start", str(error)
    failed = ended.first(b"L")
    if failed is not None:
        step, _, reason = failed.decode().partition("\t")
        return step, reason
    try:
        found = ast.literal_eval(ended.stdout.decode())
    except (ValueError, SyntaxError):
        last = (ended.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {ended.exit_code}"])[-1]
        return "identity" if tried.uid is not None else "start", f"a program cannot run: {last}"
    if tried.landlock_abi and (found["read"], found["write"]) != ("EACCES", "EACCES"):
        return "landlock", f"a file outside could be opened: {found}"
    if tried.seccomp and (found["socket"], found["signal"]) != ("EPERM", "EPERM"):
        return "seccomp", f"a socket or a signal was allowed: {found}"
    if tried.namespaces and not found["first"]:
        return "namespaces", "the pid namespace is not in force"
    return None, ""
