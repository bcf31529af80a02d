"""The gate between frames and the app: malformed values become protocol errors."""

from __future__ import annotations

from typing import Any

import pytest

from remote.events import BoxGreeted, GpuSampled, RunsReported, SessionsReported
from remote.intake import greeting, topic_event
from remote.protocol import ProtocolError
from remote.protocol.versions import UNKNOWN, EngineVersion


def test_a_hello_becomes_a_greeting() -> None:
    engine = {"version": "0.2.0", "format": 2}
    assert greeting({"agent": "x", "host": {}, "engine": engine}) == BoxGreeted("x", {}, EngineVersion("0.2.0", 2))
    assert greeting({"host": {"name": "h"}}) == BoxGreeted("", {"name": "h"}, UNKNOWN)


@pytest.mark.parametrize(
    "hello",
    [
        {},
        {"host": []},
        {"host": {}, "engine": "0.2.0"},
        {"host": {}, "engine": {"version": 2}},
        {"host": {}, "engine": {"version": "0.2.0", "format": "2"}},
    ],
)
def test_a_malformed_hello_is_refused(hello: dict[str, Any]) -> None:
    with pytest.raises(ProtocolError):
        greeting(hello)


def test_topic_values_become_events() -> None:
    assert topic_event("runs", {"runs": [{"run": "a"}]}) == RunsReported([{"run": "a"}])
    assert topic_event("sessions", {"sessions": []}) == SessionsReported([])
    assert topic_event("gpu", {"gpus": [], "note": "none"}) == GpuSampled([], "none")


@pytest.mark.parametrize("value", [None, {}, {"runs": None}, {"runs": [1]}, {"runs": {}}, []])
def test_malformed_topic_values_are_refused(value: Any) -> None:
    with pytest.raises(ProtocolError):
        topic_event("runs", value)
