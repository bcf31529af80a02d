"""Results of programs and tests, isolation levels, errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from grpo_train.run_dir.errors import UserError

Level = Literal["full", "strong", "medium", "weak"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""Strongest first."""
TOO_WEAK: tuple[Level, ...] = ("medium", "weak")
"""Levels that must be allowed explicitly."""
Status = Literal["ok", "syntax_error", "runtime_error", "timeout", "memory", "killed", "output_limit"]

REASONS = (
    "ok", "wrong_answer", "exception", "syntax_error", "exit", "timeout", "memory", "killed", "output_limit",
    "unsupported_value", "forged_results", "setup_failed", "test_failed", "unsupported_test", "no_result",
    "no_tests",
)  # fmt: skip
"""Why tests did not pass (``TestsResult.reason``).

- ``exit``: the program raised SystemExit or exited without results
- ``killed``: a signal ended it
- ``unsupported_value``: it returned something other than plain data
- ``forged_results``: it wrote to the result channel itself
- ``setup_failed``: the dataset's setup failed on its definitions
- ``test_failed``: a test's own statement or comparison raised
- ``unsupported_test``: the expected value cannot be kept out of the program's process
- ``no_result``: a call reported nothing
"""


class SandboxError(UserError):
    """The sandbox does not work on this machine. Not a verdict on a program."""

    code = "no_sandbox"


class SandboxTooWeak(SandboxError):
    """Isolation is below ``strong``, and weaker isolation is not allowed."""


class UnsupportedTest(ValueError):
    """A dataset test that cannot be split into the program's part and the judge's part (``split_tests``)."""


@dataclass(frozen=True)
class ProgramResult:
    """Result of one program."""

    stdout: str
    """Standard output, at most ``max_output`` bytes, invalid UTF-8 replaced."""
    stderr: str
    """Tail of standard error."""
    status: Status
    """``ok``: it finished and flushed its output. ``killed``: it ended otherwise than by its last line, an exception or
    ``sys.exit`` (``os._exit``, a crash)."""
    isolation: Level
    denials: dict[str, int] = field(default_factory=dict)
    """Number of attempts by kind: ``network``, ``process``, ``signal``, ``file`` (outside its directory), ``native``
    (ctypes), ``limits``, ``introspection``, ``canary``. An indicator only: a program can hide attempts, and ``native``,
    ``limits`` and ``introspection`` are not denied as such."""
    seconds: float = 0.0
    """Wall time, including the interpreter's startup."""


@dataclass(frozen=True)
class TestsResult:
    """Verdicts on a solution, judged outside its process."""

    __test__ = False  # for pytest

    passed: list[bool]
    """One verdict per test."""
    reason: str
    """``ok``, or the first failure: one of ``REASONS``."""
    reasons: list[str]
    """Per test: ``ok``, or one of ``REASONS``, a colon and details."""
    isolation: Level
    denials: dict[str, int] = field(default_factory=dict)
    """As in :class:`ProgramResult`."""
    seconds: float = 0.0
