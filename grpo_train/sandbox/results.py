"""What a program did, and what its tests say of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from grpo_train.run_dir.errors import UserError

Level = Literal["full", "strong", "medium", "weak"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""The strongest first."""
TOO_WEAK: tuple[Level, ...] = ("medium", "weak")
"""Levels at which nothing runs unless it was allowed."""
Status = Literal["ok", "syntax_error", "runtime_error", "timeout", "memory", "killed", "output_limit"]

REASONS = (
    "ok", "wrong_answer", "exception", "syntax_error", "exit", "timeout", "memory", "killed", "output_limit",
    "unsupported_value", "forged_results", "setup_failed", "test_failed", "unsupported_test", "no_result",
    "no_tests",
)  # fmt: skip
"""Why tests did not pass (``TestsResult.reason``): ``exit`` the program left by SystemExit or ended without its
results, ``killed`` a signal ended it, ``unsupported_value`` it returned what is not plain data, ``forged_results`` it
wrote to the result channel itself, ``setup_failed`` the data set's setup did not run on its definitions,
``test_failed`` a test's own statement or comparison raised, ``unsupported_test`` what is expected could not be kept out
of the program's process, ``no_result`` nothing was reported for a call."""


class SandboxError(UserError):
    """The sandbox itself does not work here: no verdict about any program."""

    code = "no_sandbox"


class SandboxTooWeak(SandboxError):
    """This machine does not allow what the sandbox needs, and weaker isolation was not asked for."""


class UnsupportedTest(ValueError):
    """A test of the data set that cannot be split into the program's part and the judge's part (``split_tests``)."""


@dataclass(frozen=True)
class ProgramResult:
    """How one program ran."""

    stdout: str
    """What it printed, at most ``max_output`` bytes of it; what is not UTF-8 is replaced."""
    stderr: str
    """The end of its standard error."""
    status: Status
    """``ok``: it ended by itself, with everything printed. ``killed``: it ended in another way than by its last line,
    an exception or ``sys.exit`` (``os._exit``, a crash)."""
    isolation: Level
    denials: dict[str, int] = field(default_factory=dict)
    """Attempts by kind: ``network``, ``process``, ``signal``, ``file`` (outside its directory), ``native`` (ctypes),
    ``limits``, ``introspection``, ``canary``. An indicator: a program can hide them, and ``native``, ``limits`` and
    ``introspection`` are not denied as such."""
    seconds: float = 0.0
    """Wall time, the interpreter's start included."""


@dataclass(frozen=True)
class TestsResult:
    """Which tests a solution passes, judged outside of the process that ran it."""

    __test__ = False  # pytest: not a test

    passed: list[bool]
    """One verdict per test."""
    reason: str
    """``ok``, or the first failure's name: one of ``REASONS``."""
    reasons: list[str]
    """Per test: ``ok``, or a name of ``REASONS``, a colon and what happened."""
    isolation: Level
    denials: dict[str, int] = field(default_factory=dict)
    """As in :class:`ProgramResult`."""
    seconds: float = 0.0

    @property
    def all_passed(self) -> bool:
        """Every test, and there is one."""
        return bool(self.passed) and all(self.passed)
