"""Isolation layers around every program, and their levels.

========== =====================================================================
``full``   rlimits, seccomp, Landlock, and namespaces (user or root's; network, pid)
``strong`` rlimits, seccomp, Landlock: blocks every tested attack, too (Ubuntu 24.04, most containers)
``medium`` without seccomp or Landlock: programs can read the user's files, or use the network
``weak``   without both: programs can do anything the user can
========== =====================================================================
"""

from __future__ import annotations

import platform
import resource
from dataclasses import dataclass, field

from grpo_train.sandbox import landlock, seccomp, syscalls
from grpo_train.sandbox.child import ChildOutcome, run_child
from grpo_train.sandbox.interpreter import interpreter
from grpo_train.sandbox.results import Level
from grpo_train.sandbox.workspace import workspace

MAX_MEMORY = 1 << 30
MAX_FILE_BYTES = 16 << 20
MAX_OPEN_FILES = 64
MAX_TMPFS_BYTES = 64 << 20
MAX_TMPFS_FILES = 4096
NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000
NEW_MOUNTS = 0x00020000
NAMESPACES = NEW_PID | NEW_NET | NEW_IPC | NEW_UTS


@dataclass(frozen=True)
class Isolation:
    """Active layers."""

    namespaces: int = 0
    """Flags of ``unshare``; 0 for none."""
    namespaces_as_root: bool = False
    """Created before root is dropped, without a user namespace."""
    uid: int | None = None
    """Unused uid that root switches to; None keeps the uid."""
    tmpfs: bool = False
    """Each program's files are on a tmpfs in a mount namespace: limited in size and number, and gone with the program.
    Otherwise they are on disk, and are removed afterwards."""
    landlock_abi: int = 0
    seccomp: bool = False
    missing: dict[str, str] = field(default_factory=dict)
    """Reason by missing layer."""

    @property
    def level(self) -> Level:
        """``full``, ``strong``, ``medium`` or ``weak``."""
        required = self.seccomp + bool(self.landlock_abi)
        if required < 2:
            return "medium" if required else "weak"
        return "full" if self.namespaces else "strong"

    def describe(self) -> str:
        """One-line description for messages."""
        layers = ["rlimits"]
        layers += ["seccomp"] if self.seccomp else []
        layers += [f"Landlock ABI {self.landlock_abi}"] if self.landlock_abi else []
        layers += ["namespaces"] if self.namespaces else []
        layers += ["tmpfs"] if self.tmpfs else []
        layers += [f"uid {self.uid}"] if self.uid is not None else []
        missing = "; ".join(f"no {layer}: {reason}" for layer, reason in self.missing.items())
        return f"{self.level} ({', '.join(layers)})" + (f"; {missing}" if missing else "")


def plan_layers(
    isolation: Isolation, tmpfs: str | None, directory: str, cpu_seconds: int, memory: int
) -> dict[str, object]:
    """The layers in the form the child expects."""
    limits = [
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        (resource.RLIMIT_AS, memory),
    ]
    machine = platform.machine()
    program = seccomp.build(machine) if isolation.seccomp else seccomp.Filter(b"", ())
    return {
        "syscalls": syscalls.numbers(machine),
        "namespaces": isolation.namespaces | (NEW_MOUNTS if tmpfs else 0),
        "namespaces_as_root": isolation.namespaces_as_root,
        "uid": isolation.uid,
        "tmpfs": tmpfs,
        "tmpfs_limits": f"size={MAX_TMPFS_BYTES},nr_inodes={MAX_TMPFS_FILES}",
        "directory": directory,
        # Soft = hard: SIGXCPU can be ignored, and always is by the first process of a pid namespace.
        "limits": [(name, _within(name, limit)) for name, limit in limits],
        "landlock": bool(isolation.landlock_abi),
        "landlock_flags": landlock.NO_LOG if isolation.landlock_abi >= 7 else 0,
        "seccomp": program.code,
        "seccomp_pid_offsets": program.pid_offsets,
    }  # fmt: skip


def _within(name: int, limit: int) -> int:
    """``limit``, but at most this process's own hard limit."""
    hard = resource.getrlimit(name)[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


def run_isolated(
    isolation: Isolation,
    job: dict[str, object],
    *,
    cpu_seconds: int,
    cpu_limit: int | None = None,
    memory: int = MAX_MEMORY,
    hash_seed: str = "0",
    stdin: bytes | None = None,
    max_output: int = 0,
) -> ChildOutcome:
    """Run a job behind these layers, in a fresh directory that is removed afterwards. Raises OSError.

    ``cpu_seconds`` sets the wall-time limit; the kernel kills the job at ``cpu_limit`` (default ``cpu_seconds``).
    """
    python = interpreter()
    slots = workspace()
    slot = slots.take(isolation.landlock_abi, isolation.uid, isolation.tmpfs)
    try:
        directory = slot.fresh_directory()
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": directory,
                       "TMPDIR": directory, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1",
                       "MALLOC_ARENA_MAX": "1"}  # fmt: skip
        job = {
            **job,
            "plan": plan_layers(isolation, slot.tmpfs, directory, cpu_limit or cpu_seconds, memory),
            "readable": python.readable_roots,
        }
        return run_child(job, ruleset=slot.ruleset, cpu_seconds=cpu_seconds, environment=environment, stdin=stdin,
                         max_output=max_output)  # fmt: skip
    finally:
        slots.give_back(slot)
