"""Probe of the isolation layers on this machine, once per process.

Below ``strong`` nothing runs unless weaker isolation is allowed.
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
    """Replace the lock, which another thread of the parent may have held during the fork."""
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def allow_weak(allowed: bool) -> None:
    """Allow programs to run with isolation below ``strong`` (config key ``sandbox.allow_weak``)."""
    global _allow_weak
    _allow_weak = allowed


def isolation() -> Isolation:
    """The isolation on this machine.

    Raises :class:`SandboxTooWeak` below ``strong`` unless weaker isolation is allowed, and :class:`SandboxError` if
    programs cannot run at all.
    """
    global _found
    with _guard:
        if _found is None:
            _found = probe()
    if _found.level in TOO_WEAK and not (_allow_weak or os.environ.get(ALLOW_WEAK_VARIABLE) == "1"):
        raise SandboxTooWeak(
            f"sandbox isolation is too weak: {_found.describe()}. Required: seccomp and Landlock (Linux 5.13 or newer "
            f"with CONFIG_SECURITY_LANDLOCK, x86-64 or aarch64; in a container, a seccomp profile that allows both). "
            f"To run model-written programs anyway, set sandbox.allow_weak: true in the config or "
            f"{ALLOW_WEAK_VARIABLE}=1; results then report the level {_found.level!r}."
        )
    return _found


def probe() -> Isolation:
    """Try all layers and drop those that fail, one at a time. Raises :class:`SandboxError`."""
    machine = platform.machine()
    if machine not in syscalls.MACHINES:
        raise SandboxError(f"the sandbox does not support {machine}; supported: {', '.join(syscalls.MACHINES)}")
    abi = landlock.abi()
    missing = {} if abi else {"landlock": "not supported or disabled in the kernel"}
    uid = UNUSED_UID if os.geteuid() == 0 else None
    closed = _closed_to_others(interpreter().stdlib) or _closed_to_others(workspace().root)
    if uid is not None and closed:
        uid, missing = None, {**missing, "separate uid": f"programs need {closed}, which only root may enter"}
    tried = Isolation(NAMESPACES | NEW_USER, False, uid, True, abi, True, missing)
    for _ in range(8):
        step, reason = _try(tried)
        if step is None:
            return tried
        weaker = _without(tried, step, reason)
        if weaker is None:
            raise SandboxError(f"the sandbox cannot run programs: {step}: {reason}")
        tried = weaker
    raise SandboxError(f"the sandbox cannot run programs: {tried.describe()}")


def _closed_to_others(path: str) -> str | None:
    """First directory on ``path`` that an unused uid may not enter."""
    for directory in (*reversed(Path(path).parents), Path(path)):
        if not directory.stat().st_mode & stat.S_IXOTH:
            return str(directory)
    return None


def _without(tried: Isolation, step: str, reason: str) -> Isolation | None:
    missing = {**tried.missing, step: reason}
    if step == "separate uid" and tried.uid is not None:
        return replace(tried, uid=None, missing=missing)
    if step == "tmpfs" and tried.tmpfs:
        return replace(tried, tmpfs=False, missing=missing)
    if step == "namespaces" and tried.namespaces & NEW_USER and os.geteuid() == 0:
        return replace(tried, namespaces=NAMESPACES, namespaces_as_root=True)
    if step == "namespaces" and tried.namespaces:
        return replace(tried, namespaces=0, namespaces_as_root=False, tmpfs=False, missing=missing)
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
    """Run a program that tries to break each layer: the first layer that fails, and the reason."""
    path = workspace().canary
    source = ATTEMPTS.replace("PARENT", str(os.getpid())).replace("CANARY", repr(path))
    try:
        outcome = run_isolated(tried, {"mode": "program", "source": source}, cpu_seconds=5, max_output=1 << 16)
    except OSError as error:
        if "landlock" in str(error):
            return "landlock", str(error)
        # Without its capabilities root can neither chown files nor kill processes of another user.
        refused = isinstance(error, PermissionError) and tried.uid is not None
        return "separate uid" if refused else "start", str(error)
    failed = outcome.first(b"L")
    if failed is not None:
        step, _, reason = failed.decode().partition("\t")
        return step, reason
    try:
        found = ast.literal_eval(outcome.stdout.decode())
    except (ValueError, SyntaxError):
        last = (outcome.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {outcome.exit_code}"])[-1]
        return "separate uid" if tried.uid is not None else "start", f"the test program failed: {last}"
    if tried.landlock_abi and (found["read"], found["write"]) != ("EACCES", "EACCES"):
        return "landlock", f"a file outside was opened: {found}"
    if tried.seccomp and (found["socket"], found["signal"]) != ("EPERM", "EPERM"):
        return "seccomp", f"a socket or a signal was allowed: {found}"
    if tried.namespaces and not found["first"]:
        return "namespaces", "the pid namespace has no effect"
    return None, ""
