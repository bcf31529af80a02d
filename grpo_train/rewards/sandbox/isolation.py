"""What the sandbox puts in force on this machine: found out by doing it, once per process, and named.

========== =====================================================================
``full``   rlimits, seccomp, Landlock, and user (or root's), network and pid namespaces
``strong`` rlimits, seccomp, Landlock: as tight for every attack known here (Ubuntu 24.04, most containers)
``medium`` seccomp or Landlock is missing: files of the user can be read, or the network reached
``weak``   both are missing: the program can do what the user can
========== =====================================================================

Below ``strong`` nothing runs unless weaker isolation was asked for.
"""

from __future__ import annotations

import ast
import os
import platform
import threading
from dataclasses import dataclass, field, replace
from functools import lru_cache

from grpo_train.rewards.sandbox import canary, landlock, seccomp
from grpo_train.rewards.sandbox.child import Ended, run_child
from grpo_train.rewards.sandbox.interpreter import interpreter
from grpo_train.rewards.sandbox.results import Level, SandboxError, SandboxTooWeak
from grpo_train.rewards.sandbox.workspace import workspace

ALLOW_WEAK_VARIABLE = "GRPO_ALLOW_WEAK_SANDBOX"
MAX_MEMORY = 1 << 30
MAX_FILE_BYTES = 16 << 20
MAX_OPEN_FILES = 64
UNUSED_UID = 65534
NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000
NAMESPACES = NEW_PID | NEW_NET | NEW_IPC | NEW_UTS
RLIMIT_CPU, RLIMIT_FSIZE, RLIMIT_CORE, RLIMIT_NOFILE, RLIMIT_MEMLOCK, RLIMIT_AS, RLIMIT_MSGQUEUE = 0, 1, 4, 7, 8, 9, 12


@dataclass(frozen=True)
class Isolation:
    """The layers that are put in force around every program."""

    namespaces: int = 0
    """Flags of ``unshare``; 0: none."""
    namespaces_as_root: bool = False
    """Made before root is given up, without a user namespace."""
    uid: int | None = None
    """The unused uid that root becomes; None: the uid stays."""
    landlock_abi: int = 0
    seccomp: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    """Layer to reason, for what is not in force."""

    @property
    def level(self) -> Level:
        """``full``, ``strong``, ``medium`` or ``weak``."""
        walls = self.seccomp + bool(self.landlock_abi)
        if walls < 2:
            return "medium" if walls else "weak"
        return "full" if self.namespaces else "strong"

    def describe(self) -> str:
        """One line for a log or a summary."""
        layers = ["rlimits"]
        layers += ["seccomp"] if self.seccomp else []
        layers += [f"Landlock ABI {self.landlock_abi}"] if self.landlock_abi else []
        layers += ["namespaces"] if self.namespaces else []
        layers += [f"uid {self.uid}"] if self.uid is not None else []
        missing = "; ".join(f"no {layer}: {reason}" for layer, reason in self.missing.items())
        return f"{self.level} ({', '.join(layers)})" + (f"; {missing}" if missing else "")


def plan(isolation: Isolation, directory: str, cpu_seconds: int, memory: int) -> dict[str, object]:
    """The layers as the child takes them."""
    machine = platform.machine()
    program = _filter(machine) if isolation.seccomp else seccomp.Filter(b"", ())
    return {
        "syscalls": seccomp.setup_numbers(machine),
        "namespaces": isolation.namespaces,
        "namespaces_as_root": isolation.namespaces_as_root,
        "uid": isolation.uid,
        "directory": directory,
        # Soft and hard alike: SIGXCPU could be ignored, and is by the first process of a pid namespace.
        "limits": [(RLIMIT_CPU, cpu_seconds), (RLIMIT_FSIZE, MAX_FILE_BYTES), (RLIMIT_CORE, 0),
                   (RLIMIT_NOFILE, MAX_OPEN_FILES), (RLIMIT_MEMLOCK, 0), (RLIMIT_MSGQUEUE, 0),
                   (RLIMIT_AS, memory)],
        "landlock": bool(isolation.landlock_abi),
        "seccomp": program.code,
        "seccomp_pid_offsets": program.pid_offsets,
    }  # fmt: skip


@lru_cache(maxsize=2)
def _filter(machine: str) -> seccomp.Filter:
    return seccomp.build(machine)


def run_isolated(
    isolation: Isolation,
    job: dict[str, object],
    *,
    cpu_seconds: int,
    memory: int = MAX_MEMORY,
    hash_seed: str = "0",
    stdin: bytes | None = None,
    max_output: int = 0,
) -> Ended:
    """Runs a job behind these layers, in a fresh directory that is gone afterwards. Raises OSError."""
    python = interpreter()
    rooms = workspace()
    slot = rooms.take(isolation.landlock_abi)
    try:
        directory = slot.fresh_directory(isolation.uid)
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": directory,
                       "TMPDIR": directory, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1"}  # fmt: skip
        job = {**job, "plan": plan(isolation, directory, cpu_seconds, memory), "readable": python.readable_roots}
        return run_child(job, ruleset=slot.ruleset, cpu_seconds=cpu_seconds, environment=environment, stdin=stdin,
                         max_output=max_output)  # fmt: skip
    finally:
        rooms.give_back(slot, isolation.landlock_abi)


_guard = threading.Lock()
_found: Isolation | None = None
_allow_weak = False


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
    if _found.level in ("medium", "weak") and not (_allow_weak or os.environ.get(ALLOW_WEAK_VARIABLE) == "1"):
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
    if machine not in seccomp.MACHINES:
        raise SandboxError(f"the sandbox knows the system calls of {', '.join(seccomp.MACHINES)}, not of {machine}")
    abi = landlock.abi()
    missing = {} if abi else {"landlock": "the kernel has none, or it is off"}
    tried = Isolation(NAMESPACES | NEW_USER, False, UNUSED_UID if os.geteuid() == 0 else None, abi, True, missing)
    for _ in range(8):
        step, reason = _try(tried)
        if step is None:
            return tried
        weaker = _without(tried, step, reason)
        if weaker is None:
            raise SandboxError(f"no program can be run in the sandbox: {step}: {reason}")
        tried = weaker
    raise SandboxError(f"no program can be run in the sandbox: {tried.describe()}")


def _without(tried: Isolation, step: str, reason: str) -> Isolation | None:
    missing = {**tried.missing, step: reason}
    if step == "identity" and tried.uid is not None:
        return replace(tried, uid=None, missing=missing)
    if step == "namespaces" and tried.namespaces & NEW_USER and os.geteuid() == 0:
        return replace(tried, namespaces=NAMESPACES, namespaces_as_root=True)
    if step == "namespaces" and tried.namespaces:
        return replace(tried, namespaces=0, namespaces_as_root=False, missing=missing)
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
    path = os.path.join(workspace().root, canary.FILE_NAME)
    if not os.path.exists(path):
        with open(path, "w", encoding="utf-8") as file:
            file.write(canary.canary())
        os.chmod(path, 0o644)  # everybody may read it, but for Landlock
    source = ATTEMPTS.replace("PARENT", str(os.getpid())).replace("CANARY", repr(path))
    try:
        ended = run_isolated(tried, {"mode": "program", "source": source}, cpu_seconds=5, max_output=1 << 16)
    except OSError as error:
        return "landlock" if "landlock" in str(error) else "start", str(error)
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
