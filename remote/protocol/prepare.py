"""Requests that prepare a box: its ``.env``, and the setup of the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from remote.protocol.fields import Label
from remote.protocol.intake import SECRET
from remote.protocol.jobs import ChangeRequest, CommandRequest

MAX_ENV_BYTES = 16_384


@dataclass(frozen=True)
class PlaceEnvRequest(ChangeRequest):
    """Replaces the ``.env`` of the account on the box (:mod:`grpo_train.run_dir.env_file`)."""

    text: str = field(repr=False, metadata=SECRET)
    """At most MAX_ENV_BYTES. It is in no record, message or command line."""


class PlaceEnvReply(TypedDict):
    path: Label
    replaced: bool
    """Whether there was one before."""


@dataclass(frozen=True)
class SetUpRequest(CommandRequest):
    """Installs the engine of the checkout in a tmux session, or finds the one that is at it."""
