"""Running programs of a model: each in a fresh interpreter that has given up everything but computing.

``run_program`` runs a script; ``run_tests`` runs a data set's asserts on a solution. What a program reports is a claim:
expected values never enter its process, its exit code is no verdict, and what it returns comes out as plain data and
is compared here. Both are thread-safe; a ``ThreadPoolExecutor`` of ``worker_count()`` threads keeps the cores busy and
overlaps with whatever else the trainer does.

What protects this machine is found out once per process, by trying, and has a name: see :func:`isolation`.

What is not kept from a program: that a file exists, its size and its times (``stat`` needs no permission that could be
taken away), which interpreter and kernel run it, and the time. What is not limited: the memory of all programs together
(callers run a few at a time, each with its own limit), and without a mount namespace the number of files that a
program writes in its seconds, which are removed afterwards. A bug of the kernel is a way out.
"""

import os

from grpo_train.sandbox.asserts import split_tests
from grpo_train.sandbox.canary import canary_hits
from grpo_train.sandbox.grading import run_tests
from grpo_train.sandbox.layers import Isolation
from grpo_train.sandbox.probe import allow_weak, isolation
from grpo_train.sandbox.programs import run_program
from grpo_train.sandbox.results import (
    REASONS,
    ProgramResult,
    SandboxError,
    SandboxTooWeak,
    TestsResult,
    UnsupportedTest,
)

__all__ = [
    "REASONS",
    "Isolation",
    "ProgramResult",
    "SandboxError",
    "SandboxTooWeak",
    "TestsResult",
    "UnsupportedTest",
    "allow_weak",
    "canary_hits",
    "isolation",
    "run_program",
    "run_tests",
    "split_tests",
    "worker_count",
]


def worker_count() -> int:
    """How many programs to run at a time: one per core that this process may use."""
    return max(1, len(os.sched_getaffinity(0)))
