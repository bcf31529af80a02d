"""Values that messages carry, and the timing both ends agree on."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from grpo_train.run_dir.errors import UserError

PROTOCOL_VERSION = 1
VALUE_TOPICS = ("runs", "sessions", "gpu")
"""Topics whose updates carry the whole value."""
INITIAL_CREDIT = 262_144
"""Bytes of ``data`` the agent may send on a new subscription before it waits for more credit."""
HEAD_BYTES = 4_096
"""A log cursor identifies its file by the hashes of up to this many first bytes and of as many before its offset."""
PING_EVERY_S = 1.0
STALE_AFTER_S = 5.0
LOST_AFTER_S = 15.0
AGENT_SILENCE_S = 12.0
"""The agent exits after hearing nothing for this long."""


class ProtocolError(Exception):
    """A line that is not a frame of this protocol."""


class Flood(ProtocolError):
    """More than the other end was allowed to send. The client waits its longest back-off before it connects again."""

    code = "flood"


class RemoteError(UserError):
    """A request that the box refused: ``code`` for programs, ``message`` and ``hint`` for the user."""

    def __init__(self, code: str, message: str, hint: str = "") -> None:
        super().__init__(message, code=code)
        self.message, self.hint = message, hint

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message, "hint": self.hint}


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in a log that survives NFS remounts and restores: a path (relative to the root) and an offset.

    The other fields describe the file. An empty one is unknown: version 0.1.0 has only the head.
    """

    path: str
    offset: int = 0
    """Offset of the next byte."""
    head_length: int = 0
    head_sha256: str = ""
    """Hash of the file's first ``head_length`` bytes."""
    tail_sha256: str = ""
    """Hash of the last HEAD_BYTES before the offset, or of all bytes before it where there are fewer."""
    device: int = 0
    inode: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Cursor:
        return cls(
            str(value["path"]),
            int(value["offset"]),
            int(value["head_length"]),
            str(value["head_sha256"]),
            str(value.get("tail_sha256", "")),
            int(value.get("device", 0)),
            int(value.get("inode", 0)),
        )


@dataclass(frozen=True)
class Settings:
    """A box's settings (from boxes.yaml), sent to its agent with hello."""

    root: str = ""
    """LOCALFS_ROOT on the box; "" = the agent's default."""
    repo: str = ""
    """The checkout of grpo-tui on the box; its ``config/`` holds the configs. "" = none."""
    code: str = ""
    """``sync``: ``grpo-tui sync`` brings the code; ``clone``: it pulls in ``repo``; "" = ``repo``, else as ``sync``."""
    activate: str = ""
    """The user's shell snippet that activates the engine's environment."""
    engine: list[str] = field(default_factory=list)
    """Command of the engine, e.g. ["/x/.venv/bin/grpo-train"]; [] = found by the agent."""
    env: dict[str, str] = field(default_factory=dict)
    """Variables of every command that the agent starts; ``$NAME`` and ``~`` are expanded there. No secrets."""
    tmux_socket: str = ""
    """Name of the tmux socket; "" = the default one, so that plain ``tmux attach`` works."""
    umask: str = ""
    """Octal umask of the agent and of what it starts; "" = 077."""
    follow_links: bool = False
    """Whether a log may be a symbolic link out of the root."""
    persistent: bool = False
    """Whether the user says that the disk of the root outlives the box."""
    scheduler: str = ""
    """``slurm``: the box is a login node, and a run is a job; "" = a run is a tmux session."""
    slurm: dict[str, Any] = field(default_factory=dict)
    """What jobs ask for, see :class:`remote.protocol.slurm.JobOptions`."""
    readonly: bool = False
    """Whether the agent refuses every request that changes state. Set by the client, not by boxes.yaml."""
