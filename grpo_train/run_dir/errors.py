"""Expected failures: a message for the user, a code for programs. Standard library only."""

from __future__ import annotations

import errno

from grpo_train.run_dir.installation import install_command


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


def code_of(error: BaseException) -> str:
    """The code of any failure: a :class:`UserError`'s own, ``disk_full``, ``read_only``, ``io`` or ``internal``."""
    if isinstance(error, UserError):
        return error.code
    if isinstance(error, OSError):
        full = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        return "disk_full" if error.errno in full else "read_only" if error.errno == errno.EROFS else "io"
    return "internal"
