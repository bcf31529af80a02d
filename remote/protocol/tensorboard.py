"""The request that starts TensorBoard for a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias, TypedDict

from remote.protocol.fields import Label
from remote.protocol.intake import Rule
from remote.protocol.jobs import ChangeRequest, Text

Port: TypeAlias = Annotated[int, Rule("a port number", lambda value: 0 < value < 65_536)]


@dataclass(frozen=True)
class OpenTensorBoardRequest(ChangeRequest):
    """Starts it in the session ``tensorboard_<run>``, or finds the one that runs. It ends without connections."""

    run: Text


class OpenTensorBoardReply(TypedDict):
    session: Label
    port: Port
    """On the box's loopback."""
    path: Label
    """``/RANDOM/``."""
