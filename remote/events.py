"""What a client tells its owner: past-tense facts, each a small frozen value. No sockets, no screens."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from remote.protocol import Cursor


class Link(str, Enum):
    """The state of the link, never of a job."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    STALE = "stale"
    """No word from the box for 5 s."""
    LOST = "lost"
    """No word for 15 s, or the connection broke: reconnecting with back-off."""
    REFUSED = "refused"
    """It cannot work as it is (key refused, host key changed, no Python): waits for the user."""
    CLOSED = "closed"


@dataclass(frozen=True)
class LinkChanged:
    """The link has another state, or another round-trip time."""

    state: Link
    detail: str = ""
    """In words, for the user: why, and the way out."""
    latency_ms: float | None = None
    retry_in_s: float | None = None


@dataclass(frozen=True)
class HostKeyAsked:
    """An unknown box shows its key. Answer with ``BoxClient.answer_host_key(accept)``."""

    host: str
    key_type: str
    fingerprint: str
    """``SHA256:…`` as ssh-keygen prints it."""


@dataclass(frozen=True)
class BoxGreeted:
    """The agent's hello: facts of the host (name, python, tmux, root, cpu_count, gpus …)."""

    agent: str
    host: dict[str, Any] = field(default_factory=dict)


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
    """Samples of every GPU now ([] where there is none): index, name, utilization_percent, memory_used_mib,
    memory_total_mib, power_w, temperature_c, processes."""

    gpus: list[dict[str, Any]]
    note: str = ""


@dataclass(frozen=True)
class LogArrived:
    """Bytes of a followed log, in order, each once. ``cursor`` is the place behind them."""

    subscription: int
    path: str
    offset: int
    data: bytes
    cursor: Cursor


@dataclass(frozen=True)
class LogRotated:
    """The file is another one now (or shorter): what was shown is void, it follows again from its start."""

    subscription: int
    path: str


@dataclass(frozen=True)
class LogFailed:
    """The box will not send this log (its path leaves the root, it is no regular file); the subscription is over."""

    subscription: int
    path: str
    message: str


ClientEvent: TypeAlias = (
    LinkChanged
    | HostKeyAsked
    | BoxGreeted
    | RunsReported
    | SessionsReported
    | GpuSampled
    | LogArrived
    | LogRotated
    | LogFailed
)
