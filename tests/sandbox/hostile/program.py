"""One program of the corpus and its expected result."""

from __future__ import annotations

from dataclasses import dataclass

TESTS = ["assert f(1) == 2", "assert f(2) == 4", "assert f(-3) == -6"]
HONEST = "def f(x):\n    return 2 * x\n"
DENIED = ("EPERM", "EACCES")


@dataclass(frozen=True)
class Program:
    """A program; with ``statuses`` it runs as a script, otherwise against ``TESTS``."""

    name: str
    source: str
    reasons: tuple[str, ...] = ()
    """Allowed reasons of the verdict; unless it is ``ok``, no test may pass."""
    statuses: tuple[str, ...] = ()
    """Allowed statuses of the script."""
    stdout: str | None = None
    """Expected output of the script."""
    outcomes: tuple[str, ...] = ()
    """Allowed results of an escape's ``outcome()``; the three tests must pass anyway."""
    stdin: str = ""
    kind: str = ""


def escape(name: str, attempt: str, outcomes: tuple[str, ...] = DENIED, before: str = "") -> Program:
    """A program that runs ``attempt`` (a function body) when loaded, and then solves its task honestly.

    The attempt returns a negative error number, raises OSError, or returns what it obtained.
    """
    body = "\n".join("    " + line for line in attempt.strip().splitlines())
    source = f"""
import ctypes, errno, os, signal, socket, sys
{before}
def syscall(*arguments):
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    result = library.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return -ctypes.get_errno() if result == -1 else result

def attempt():
{body}

def outcome():
    try:
        result = attempt()
    except OSError as error:
        result = -(error.errno or 0)
    if isinstance(result, int) and not isinstance(result, bool) and result < 0:
        return errno.errorcode.get(-result, "an unknown error")
    return "got through: " + repr(result)

was = outcome()
def f(x):
    return 2 * x
"""
    return Program(name, source, reasons=("ok",), outcomes=outcomes, kind="escape")
