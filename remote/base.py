"""Errors that the whole link raises. The agent's bundle carries this file."""

from __future__ import annotations

from grpo_train.run_dir.errors import UserError


class BoxesError(UserError):
    """A problem in boxes.yaml: file, line, key, and what to do."""

    code = "bad_config"


class Refused(Exception):
    """The box gave a whole answer, and it was no (see :mod:`remote`).

    ``code``: ``host_key`` or ``question`` (only a person can decide or answer; not retried), ``algorithms`` (another
    transport may have one in common with the box), or "".
    """

    def __init__(self, message: str, code: str = "") -> None:
        super().__init__(message)
        self.code = code


class Unreachable(Exception):
    """Anything that ended early: retrying may help.

    ``refusal``: what it means when two connections end in it. Once, it may be a damaged byte, because the first packets
    are plain text.
    """

    def __init__(self, message: str, refusal: Refused | None = None) -> None:
        super().__init__(message)
        self.refusal = refusal


class TryAgain(Exception):
    """Connect again at once: the user has just accepted a host key."""
