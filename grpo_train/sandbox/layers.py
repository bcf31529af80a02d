"""The layers around every program, and what a set of them is called.

========== =====================================================================
``full``   rlimits, seccomp, Landlock, and user (or root's), network and pid namespaces
``strong`` rlimits, seccomp, Landlock: as tight for every attack known here (Ubuntu 24.04, most containers)
``medium`` seccomp or Landlock is missing: files of the user can be read, or the network reached
``weak``   both are missing: the program can do what the user can
========== =====================================================================
"""

from __future__ import annotations

import platform
import resource
from dataclasses import dataclass, field
from functools import lru_cache

from grpo_train.sandbox import landlock, seccomp, syscalls
from grpo_train.sandbox.child import Ended, run_child
from grpo_train.sandbox.interpreter import interpreter
from grpo_train.sandbox.results import Level
from grpo_train.sandbox.workspace import workspace

MAX_MEMORY = 1 << 30
MAX_FILE_BYTES = 16 << 20
MAX_OPEN_FILES = 64
MAX_BOX_BYTES = 64 << 20
MAX_BOX_FILES = 4096
NEW_USER, NEW_PID, NEW_NET, NEW_IPC, NEW_UTS = 0x10000000, 0x20000000, 0x40000000, 0x08000000, 0x04000000
NEW_MOUNTS = 0x00020000
NAMESPACES = NEW_PID | NEW_NET | NEW_IPC | NEW_UTS


@dataclass(frozen=True)
class Isolation:
    """The layers that are put in force around every program."""

    namespaces: int = 0
    """Flags of ``unshare``; 0: none."""
    namespaces_as_root: bool = False
    """Made before root is given up, without a user namespace."""
    uid: int | None = None
    """The unused uid that root becomes; None: the uid stays."""
    box: bool = False
    """The programs' files lie in memory, in a mount namespace of their own: limited in size and number, and gone with
    the program. Otherwise they lie on the disk, and are removed."""
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
        layers += ["files in memory"] if self.box else []
        layers += [f"uid {self.uid}"] if self.uid is not None else []
        missing = "; ".join(f"no {layer}: {reason}" for layer, reason in self.missing.items())
        return f"{self.level} ({', '.join(layers)})" + (f"; {missing}" if missing else "")


def plan(isolation: Isolation, box: str | None, directory: str, cpu_seconds: int, memory: int) -> dict[str, object]:
    """The layers as the child takes them."""
    # Soft and hard alike: SIGXCPU could be ignored, and is by the first process of a pid namespace.
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
    program = _filter(machine) if isolation.seccomp else seccomp.Filter(b"", ())
    return {
        "syscalls": syscalls.numbers(machine),
        "namespaces": isolation.namespaces | (NEW_MOUNTS if box else 0),
        "namespaces_as_root": isolation.namespaces_as_root,
        "uid": isolation.uid,
        "box": box,
        "box_limits": f"size={MAX_BOX_BYTES},nr_inodes={MAX_BOX_FILES}",
        "directory": directory,
        # Soft and hard alike: SIGXCPU could be ignored, and is by the first process of a pid namespace.
        "limits": [(name, _within(name, limit)) for name, limit in limits],
        "landlock": bool(isolation.landlock_abi),
        "landlock_flags": landlock.NO_LOG if isolation.landlock_abi >= 7 else 0,
        "seccomp": program.code,
        "seccomp_pid_offsets": program.pid_offsets,
    }  # fmt: skip


def _within(name: int, limit: int) -> int:
    """``limit``, or what this process itself is held to."""
    hard = resource.getrlimit(name)[1]
    return limit if hard == resource.RLIM_INFINITY else min(limit, hard)


@lru_cache(maxsize=2)
def _filter(machine: str) -> seccomp.Filter:
    return seccomp.build(machine)


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
) -> Ended:
    """Runs a job behind these layers, in a fresh directory that is gone afterwards; the kernel ends it at
    ``cpu_limit`` (default ``cpu_seconds``, by which its wall time is measured). Raises OSError."""
    python = interpreter()
    rooms = workspace()
    slot = rooms.take(isolation.landlock_abi, isolation.uid, isolation.box)
    try:
        directory = slot.fresh_directory()
        environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "TZ": "UTC", "HOME": directory,
                       "TMPDIR": directory, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": "1",
                       "MALLOC_ARENA_MAX": "1"}  # fmt: skip
        job = {
            **job,
            "plan": plan(isolation, slot.box, directory, cpu_limit or cpu_seconds, memory),
            "readable": python.readable_roots,
        }
        return run_child(job, ruleset=slot.ruleset, cpu_seconds=cpu_seconds, environment=environment, stdin=stdin,
                         max_output=max_output)  # fmt: skip
    finally:
        rooms.give_back(slot)
