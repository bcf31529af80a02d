"""Sandbox for model-written programs: each runs in a fresh interpreter that has dropped every right but computing.

``run_program`` runs a script; ``run_tests`` runs a dataset's asserts on a solution. A program's own report is only a
claim: expected values never enter its process, its exit code is not a verdict, and the values it returns come out as
plain data and are compared here. Both functions are thread-safe; run about one per core.

The protection of this machine is probed once per process and reported as a level, see :func:`isolation`.

Not hidden from a program: the existence, size and times of files (``stat`` needs no permission that could be dropped),
the interpreter, the kernel, and the time. Not limited: the total memory of all programs (each has its own limit), and
without a mount namespace the number of files that a program writes before its time is up; they are removed afterwards.
A kernel bug is a way out.
"""

from grpo_train.sandbox.asserts import split_tests
from grpo_train.sandbox.grading import run_tests
from grpo_train.sandbox.probe import allow_weak, isolation
from grpo_train.sandbox.programs import run_program
from grpo_train.sandbox.results import ProgramResult, SandboxError, SandboxTooWeak, TestsResult, UnsupportedTest

__all__ = [
    "ProgramResult", "SandboxError", "SandboxTooWeak", "TestsResult", "UnsupportedTest", "allow_weak", "isolation",
    "run_program", "run_tests", "split_tests",
]  # fmt: skip
