"""An agent of a read-only client refuses whatever changes state, whatever it is sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remote.boxes import Box
from remote.protocol import OPERATIONS, RemoteError, encode
from tests.remote.conftest import FAKE_ENGINE
from tests.support.agent import RawAgent, connected
from tests.support.backups import contents, make_run

CHANGES: dict[str, dict[str, Any]] = {
    "launch": {"config_text": "run: {total_steps: 1}"},
    "resume": {"run": "one"},
    "evaluate": {"run": "one"},
    "back_up": {"run": "one"},
    "back_up_all": {},
    "restore": {"run": "one"},
    "archive": {"run": "one"},
    "clean_up": {"run": "one"},
    "verify_backup": {"run": "one"},
    "stop": {"run": "one"},
    "kill": {"run": "one"},
    "open_ask": {"run": "one", "steps": [2]},
    "ask": {"ask": "0" * 32, "prompt": "1 + 1"},
    "cancel_answer": {"ask": "0" * 32, "question": "0" * 32},
    "close_ask": {"ask": "0" * 32},
    "note": {"run": "one", "text": "x"},
    "place_env": {"text": "A=1"},
    "set_up": {},
    "open_tensorboard": {"run": "one"},
    "open_shell": {},
    "send_line": {"session": "one", "line": "ls"},
}
"""Valid parameters of every operation that changes state."""


@pytest.fixture
def agent(root: Path, tmux_socket: str) -> Iterator[RawAgent]:
    make_run(root, "one", 2)
    raw = RawAgent(root, engine=[str(FAKE_ENGINE)], tmux_socket=tmux_socket, readonly=True)
    yield raw
    raw.close()


def test_every_change_is_refused(agent: RawAgent, root: Path) -> None:
    assert set(CHANGES) == {name for name, operation in OPERATIONS.items() if operation.changes_state}
    before = contents(root)
    for op, params in CHANGES.items():
        unknown = {} if "dry_run" in OPERATIONS[op].request.__dataclass_fields__ else {"dry_run": True}
        for more in (
            {},
            {"idempotency_key": "k"},
            {"idempotency_key": "k", "recall": True},
            {"dry_run": False},
            unknown,
        ):
            answer = agent.request(op, **{**params, **more})
            assert answer["error"]["code"] == "read_only", (op, more, answer)
    assert contents(root) == before
    assert agent.request("list_sessions")["result"]["sessions"] == []


def test_dry_runs_and_reads_are_answered(agent: RawAgent) -> None:
    assert agent.request("evaluate", run="one", dry_run=True)["result"]["started"] is False
    assert [row["run"] for row in agent.request("list_runs")["result"]["runs"]] == ["one"]


def test_a_second_hello_does_not_lift_it(agent: RawAgent, root: Path) -> None:
    hello = {"type": "hello", "protocol": 1, "settings": {"root": str(root)}}
    note = {"type": "request", "id": 1, "op": "note", "params": CHANGES["note"]}
    agent.transport.send(encode(hello) + encode(note))
    while not agent.ended:
        agent.read(1.0)
    assert not any(frame["type"] == "response" for frame in agent.frames)
    assert "a second hello" in agent.transport.error_tail()


def test_the_client_asks_for_it(box: Box, root: Path) -> None:
    make_run(root, "one", 2)
    with connected(box, readonly=True) as (client, _):
        with pytest.raises(RemoteError) as caught:
            client.request("note", 60, **CHANGES["note"]).result(90)
        assert caught.value.code == "read_only"
