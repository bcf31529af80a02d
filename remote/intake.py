"""The gate between frames and the app: events and replies from what a box sends; logs: :mod:`remote.follows`."""

from __future__ import annotations

from typing import Any

from remote.events import BoxGreeted, ClientEvent, GpuSampled, RunsReported, SessionsReported
from remote.protocol import OPERATIONS, ProtocolError, RemoteError
from remote.protocol.intake import matches
from remote.protocol.versions import EngineVersion

Rows = list[dict[str, Any]]


def greeting(hello: dict[str, Any]) -> BoxGreeted:
    """The event of a hello. Raises ProtocolError for a malformed one."""
    engine = hello.get("engine") or {}
    if not matches(hello.get("host"), dict[str, Any]) or not isinstance(engine, dict):
        raise ProtocolError("malformed hello")
    version, number = engine.get("version") or "", engine.get("format") or 0
    if not matches(version, str) or not matches(number, int):
        raise ProtocolError("malformed engine version in hello")
    return BoxGreeted(str(hello.get("agent", "")), hello["host"], EngineVersion(version, number))


def topic_event(topic: str, value: Any) -> ClientEvent:
    """The event of a topic's new value. Raises ProtocolError for a malformed one."""
    rows: Any = value.get("gpus" if topic == "gpu" else topic) if isinstance(value, dict) else None
    if not matches(rows, Rows):
        raise ProtocolError(f"malformed update of topic '{topic}'")
    if topic == "runs":
        return RunsReported(rows)
    if topic == "sessions":
        return SessionsReported(rows)
    return GpuSampled(rows, str(value.get("note") or ""))


def reply(op: str, response: dict[str, Any]) -> dict[str, Any]:
    """The result of a ``response`` frame. Raises RemoteError: the box's refusal, or ``bad_reply`` for another type."""
    if not response.get("ok"):
        raise RemoteError.from_json(response.get("error") or {})
    kind = OPERATIONS[op].reply
    result: Any = response.get("result")
    if not matches(result, kind):
        raise RemoteError("bad_reply", f"the box sent a malformed {kind.__name__}")
    return dict(result)
