"""One program of the corpus and its expected result."""

from __future__ import annotations

from collections.abc import Sequence
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
    attempt: str = ""
    """Body of an escape's function."""


PRELUDE = """
import ctypes, errno, os, signal, socket, sys
def syscall(*arguments):
    library = ctypes.CDLL(None, use_errno=True)
    library.syscall.restype = ctypes.c_long
    result = library.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    return -ctypes.get_errno() if result == -1 else result

def outcome(attempt):
    try:
        result = attempt()
    except OSError as error:
        result = -(error.errno or 0)
    if isinstance(result, int) and not isinstance(result, bool) and result < 0:
        return errno.errorcode.get(-result, "an unknown error")
    return "got through: " + repr(result)
"""


def function(name: str, body: str) -> str:
    return f"def {name}():\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())


def escape(name: str, attempt: str, outcomes: tuple[str, ...] = DENIED) -> Program:
    """A program that runs ``attempt`` (a function body) when loaded, and then solves its task honestly.

    The attempt returns a negative error number, raises OSError, or returns what it obtained.
    """
    source = f"{PRELUDE}\n{function('attempt', attempt)}\nwas = outcome(attempt)\n{HONEST}"
    return Program(name, source, reasons=("ok",), outcomes=outcomes, kind="escape", attempt=attempt)


def together(escapes: Sequence[Program]) -> str:
    """Source of one program that makes all attempts in turn, each in the first directory and without open files.

    ``was`` has their outcomes by index. An interpreter's start costs more than most attempts.
    """
    functions = "".join(function(f"attempt_{index}", escape.attempt) for index, escape in enumerate(escapes))
    return f"""{PRELUDE}
{functions}
was, here = {{}}, os.getcwd()
for index in range({len(escapes)}):
    was[index] = outcome(globals()[f"attempt_{{index}}"])
    os.chdir(here)
    for fd in (3, *range(5, 64)):  # 4 is the pipe of the results
        try: os.close(fd)
        except OSError: pass
{HONEST}"""
