"""Events of a client: small frozen values, named in the past tense."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from remote.protocol import Cursor
from remote.protocol.frames import UNKNOWN, EngineVersion


class Link(str, Enum):
    """The state of the link, never of a job."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    STALE = "stale"
    """Nothing received from the box for 5 s."""
    LOST = "lost"
    """Nothing received for 15 s, or the connection broke; reconnecting with back-off."""
    REFUSED = "refused"
    """Waiting for the user: key refused, host key changed, no Python, …"""
    CLOSED = "closed"


@dataclass(frozen=True)
class LinkChanged:
    """The link's state or round-trip time changed."""

    state: Link
    detail: str = ""
    """For the user: the reason, and what to do."""
    latency_ms: float | None = None
    retry_in_s: float | None = None


@dataclass(frozen=True)
class ClockMeasured:
    """The box's clock differs from this machine's by another amount than before."""

    skew_s: float
    """Seconds to add to a time on the box's clock."""


@dataclass(frozen=True)
class HostKeyAsked:
    """A box presented an unknown host key. Answer with ``BoxClient.answer_host_key(accept)``."""

    host: str
    key_type: str
    fingerprint: str
    """``SHA256:…`` as printed by ssh-keygen."""


@dataclass(frozen=True)
class QuestionAsked:
    """ssh needs a person to log in. Answer with ``BoxClient.answer_question``; a ``touch`` needs no answer."""

    text: str
    echo: bool
    """Whether the answer is shown while it is typed. ssh does not pass on what the box says about it: False."""
    kind: str
    """``password``, ``passphrase`` (of a key file), ``pin``, ``prompt`` (the box's), ``confirm`` or ``touch``."""


@dataclass(frozen=True)
class QuestionWithdrawn:
    """ssh no longer waits for the last question: the key was touched, or the connection ended."""


@dataclass(frozen=True)
class BoxGreeted:
    """The agent's hello: facts about the host (name, python, tmux, root, cpu_count, gpus …) and its engine."""

    agent: str
    host: dict[str, Any] = field(default_factory=dict)
    engine: EngineVersion = UNKNOWN
    """Read from the engine's files; ``doctor`` verifies it by running the engine."""
    algorithms: dict[str, str] = field(default_factory=dict)
    """``kex``, ``host_key`` and ``cipher`` of the connection; {} where they are not known."""


@dataclass(frozen=True)
class MachineChanged:
    """Another machine than the last time answers under the box's name, with a host key that is known."""

    address: str
    """Where it was reached; "" if that is not known."""


@dataclass(frozen=True)
class RunsReported:
    """Every run of the root, newest first, as ``RunDir.summary()`` rows."""

    runs: list[dict[str, Any]]


@dataclass(frozen=True)
class SessionsReported:
    """The tmux sessions of the box: name, created, attached, dead, exit_status."""

    sessions: list[dict[str, Any]]


@dataclass(frozen=True)
class GpuSampled:
    """One row per GPU: index, name, utilization_percent, memory_used_mib, memory_total_mib, power_w, temperature_c,
    free, problem, processes (pid, memory_mib, run)."""

    gpus: list[dict[str, Any]]
    note: str = ""
    """Why there are none."""


@dataclass(frozen=True)
class TopicFailed:
    """The box cannot read a topic (``runs``, ``sessions``, ``gpu``) now; its next value ends the failure."""

    topic: str
    message: str


@dataclass(frozen=True)
class LogArrived:
    """Bytes of a followed log, in order, each once. ``cursor`` is the position after them."""

    subscription: int
    path: str
    offset: int
    data: bytes
    cursor: Cursor


@dataclass(frozen=True)
class LogRotated:
    """The file was replaced or truncated: discard what arrived; it is followed again from its start."""

    subscription: int
    path: str


@dataclass(frozen=True)
class LogFailed:
    """The box refused this log (a path outside the root, not a regular file); the subscription has ended."""

    subscription: int
    path: str
    message: str


@dataclass(frozen=True)
class FilesLeftOut:
    """Files of the box that a request could not read, or not whole, and went on without, with the reasons."""

    files: dict[str, str]


ClientEvent: TypeAlias = (
    LinkChanged
    | ClockMeasured
    | HostKeyAsked
    | QuestionAsked
    | QuestionWithdrawn
    | BoxGreeted
    | MachineChanged
    | RunsReported
    | SessionsReported
    | GpuSampled
    | TopicFailed
    | LogArrived
    | LogRotated
    | LogFailed
    | FilesLeftOut
)
