"""Expected failures: a message for the user, a code for programs, the nearest known name. Standard library only."""

from __future__ import annotations

import difflib
import errno
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from grpo_train.run_dir.installation import install_command

# the nearest known name for a misspelled one ---------------------------------------------------------------


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name closest to ``name``; None if none is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return found[0] if found else None


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "known") -> str:
    """End of an error message: ``did you mean X?``, or all names after the label ``otherwise``."""
    names = list(known)
    near = nearest(name, names)
    return f"did you mean {near}?" if near else f"{otherwise}: {', '.join(names)}"


_DISK = {
    errno.ENOSPC: ("disk_full", "free disk space"),
    errno.EDQUOT: ("disk_full", "free disk space, or have the quota raised"),
    errno.EFBIG: ("disk_full", "raise the limit on the size of files (ulimit -f), or use another file system"),
    errno.EROFS: ("read_only", "make the file system writable"),
    errno.EIO: ("io", "check the disk"),
    errno.ESTALE: ("io", "mount the file system again"),
}
"""Failures of a disk: code, and what to do."""


class UserError(Exception):
    """An expected failure whose message is all that a user needs: what is wrong, where, and what to do.

    Programs match on ``code`` and never on the message.
    """

    code = "error"

    def __init__(self, message: str = "", *, code: str = "") -> None:
        super().__init__(message)
        if code:
            self.code = code


def no_engine(library: str) -> UserError:
    """The error of what needs a library of the engine: a laptop's installation has ``grpo-train`` without them."""
    return UserError(
        f"{library} is not installed in this environment; install the engine: {install_command('train')}",
        code="no_engine",
    )


@contextmanager
def prefixed(prefix: str) -> Iterator[None]:
    """Begin the message of a UserError of the block with what it is about; its class and code stay."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{prefix}{error}", code=error.code) from error


@contextmanager
def exiting_on_error(prefix: str = "error: ") -> Iterator[None]:
    """Print an expected failure of the block, and exit with 1."""
    try:
        yield
    except (UserError, OSError) as error:
        print(f"{prefix}{message_of(error)}", file=sys.stderr)
        raise SystemExit(1) from None


def code_of(error: BaseException) -> str:
    """The code of any failure: a :class:`UserError`'s own, ``disk_full``, ``read_only``, ``io`` or ``internal``."""
    if isinstance(error, UserError):
        return error.code
    if failure := disk_error(error):
        return _DISK[failure.errno or 0][0]
    return "io" if isinstance(error, OSError) else "internal"


def disk_error(error: BaseException | None) -> OSError | None:
    """The failure of a disk (full, read-only, broken) behind an error; None for an error with another cause.

    torch raises an error of its own from a write that failed; safetensors and tokenizers have the number in a text.
    """
    while error is not None:
        if isinstance(error, OSError) and error.errno in _DISK:
            return error
        found = re.search(r"\(os error (\d+)\)", str(error))
        if found and int(found[1]) in _DISK:
            return OSError(int(found[1]), os.strerror(int(found[1])))
        error = error.__cause__ or error.__context__
    return None


def disk_reason(error: OSError) -> str:
    """Why the disk failed, for a sentence."""
    reason = error.strerror or str(error)
    return f"disk full ({reason})" if error.errno == errno.ENOSPC else reason


def disk_fix(error: OSError) -> str:
    """What to do about a failure of a disk, in the imperative; "" for any other error."""
    return _DISK[error.errno][1] if error.errno in _DISK else ""


def message_of(error: BaseException) -> str:
    """One line for any failure. Of an error of the system: file, reason, and what to do where that is known."""
    if isinstance(error, UserError):
        return str(error)
    failure = disk_error(error) or error
    if not isinstance(failure, OSError):
        return f"{type(error).__name__}: {error}".removesuffix(": ")
    fix = disk_fix(failure)
    file = f"{failure.filename}: " if failure.filename else "" if fix else "input/output: "
    return f"{file}{disk_reason(failure)}{f'; {fix}' if fix else ''}"
