"""Requests that use tmux sessions as terminals: a new shell, and a line typed into a session."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict

from remote.protocol.fields import Label
from remote.protocol.intake import Rule
from remote.protocol.jobs import ChangeRequest, Text

MAX_LINE = 2_000
Line: TypeAlias = Annotated[
    str,
    Rule(f"1 to {MAX_LINE:,} printable characters", lambda value: 0 < len(value) <= MAX_LINE and value.isprintable()),
]


@dataclass(frozen=True)
class OpenShellRequest(ChangeRequest):
    """Opens a tmux session with the login shell of the account."""


class OpenShellReply(TypedDict):
    session: Label


@dataclass(frozen=True)
class SendLineRequest(ChangeRequest):
    """Types a line into a session, and Enter."""

    session: Text
    line: Line


class SendLineReply(TypedDict):
    session: Label
