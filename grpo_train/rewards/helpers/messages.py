"""Messages to and from the process that runs user-defined reward functions (pickled)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from grpo_train.rewards.types import Attempt, Verdict

Call = tuple[Sequence[Attempt], Sequence[Verdict]]
"""Attempts at one problem and their verdicts; one attempt for a function of the kind ``attempt``."""


@dataclass(frozen=True)
class Setup:
    """First message to the process; it answers with kind and place of each function, or with a :class:`CallFailure`."""

    path: list[str]
    """``sys.path`` of the parent."""
    functions: list[str]
    """Names as in ``task.rewards``."""
    modules: list[str]
    """Further user-defined functions of the ``task`` section: a problem may hold a class of their modules."""


@dataclass(frozen=True)
class CallRequest:
    """Calls of one function; each is answered by its index and a list of values, or by a :class:`CallFailure`."""

    function: int
    """Index in ``Setup.functions``."""
    calls: list[Call]


@dataclass(frozen=True)
class CallFailure:
    """Why there is no value."""

    message: str
    code: str
    details: str = ""
    """The traceback of the user's function."""
