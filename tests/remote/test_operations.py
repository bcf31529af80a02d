"""The table of operations: agent and table agree, and requests are validated."""

from __future__ import annotations

import hashlib
import json
import os
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remote.agent.box import BoxContext
from remote.agent.operations import CHANGES, HANDLERS
from remote.protocol import OPERATIONS, RemoteError
from remote.protocol.check import matches, read_request

ID = "0" * 32


def test_the_agent_handles_exactly_the_table() -> None:
    assert set(HANDLERS) == set(OPERATIONS)
    for name, handler in HANDLERS.items():
        hints = typing.get_type_hints(handler, include_extras=True)
        assert (hints["request"], hints["return"]) == (OPERATIONS[name].request, OPERATIONS[name].reply), name


def test_which_operations_change_state() -> None:
    changing = {name for name, operation in OPERATIONS.items() if operation.changes({})}
    backups = {"back_up", "back_up_all", "restore", "archive", "clean_up", "verify_backup"}
    assert changing == {
        "launch",
        "resume",
        "evaluate",
        *backups,
        "stop",
        "kill",
        "open_ask",
        "ask",
        "cancel_answer",
        "close_ask",
        "note",
        "place_env",
        "set_up",
        "open_tensorboard",
        "open_shell",
        "send_line",
    }
    dry = {name for name in changing if not OPERATIONS[name].changes({"dry_run": True})}
    without = {
        "stop",
        "kill",
        "ask",
        "cancel_answer",
        "close_ask",
        "note",
        "place_env",
        "open_tensorboard",
        "open_shell",
        "send_line",
    }
    assert dry == changing - without


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("launch", {}, "'config_text' must be a non-empty string; got None"),
        ("launch", {"config_text": 3}, "'config_text'"),
        ("launch", {"config_text": "a\0b"}, "'config_text'"),
        ("launch", {"config_text": "x", "nproc": 0}, "'nproc' must be an integer of 1 or more; got 0"),
        ("launch", {"config_text": "x", "nproc": True}, "'nproc'"),
        ("launch", {"config_text": "x", "overrides": "a=1"}, "'overrides' must be a list, each item a string"),
        ("launch", {"config_text": "x", "dry_run": "no"}, "'dry_run' must be true or false"),
        ("resume", {"run": "x", "from_step": []}, "'from_step' must be an integer or a string"),
        ("evaluate", {}, "'run' or 'ckpt_path' is required"),
        ("evaluate", {"run": "x", "subset_frac": 2}, "above 0 and at most 1"),
        ("evaluate", {"run": "x", "temperature": float("nan")}, "'temperature'"),
        ("kill", {}, "'run' or 'session' is required"),
        ("stop", {"run": ""}, "'run'"),
        ("send_line", {"session": "x", "line": "a\nb"}, "'line' must be 1 to 2,000 printable characters"),
        ("send_line", {"session": "x", "line": ""}, "'line'"),
        ("back_up", {"run": ""}, "'run'"),
        ("stop", [], "'params' must be an object"),
        ("open_ask", {"run": "x", "steps": [1, 2, 3]}, "'steps' must be a list of 1 or 2 steps"),
        ("open_ask", {"run": "x", "steps": [1], "device": "tpu"}, "'device' must be 'cpu', 'cuda' or ''"),
        ("ask", {"ask": "../x", "prompt": "1"}, "'ask' must be the id of an opened process"),
        ("ask", {"ask": ID, "prompt": " "}, "either 'prompt' or 'index' is required"),
        ("ask", {"ask": ID, "prompt": "1", "index": 1}, "either 'prompt' or 'index' is required"),
        ("ask", {"ask": ID, "prompt": "a" * 65_537}, "'prompt' must be a question of at most 65,536 characters"),
    ],
)
def test_invalid_requests_are_refused(name: str, params: Any, message: str) -> None:
    with pytest.raises(RemoteError) as caught:
        read_request(OPERATIONS[name].request, params)
    assert caught.value.code == "bad_request"
    assert message in caught.value.message


def test_null_is_the_default_and_unknown_keys_are_ok() -> None:
    request = read_request(OPERATIONS["launch"].request, {"config_text": "x", "nproc": None, "from_the_future": 1})
    assert request == OPERATIONS["launch"].request(config_text="x")


def test_replies_are_matched_against_their_type() -> None:
    kill = OPERATIONS["kill"].reply
    assert matches({"left": [], "forced": False, "session": "s", "more": 1}, kill)
    for reply in ({"left": []}, {"left": ["1"], "forced": False}, {"left": [], "forced": 0}, [], None):
        assert not matches(reply, kill), reply


@pytest.mark.parametrize("op", sorted(CHANGES))
def test_a_request_that_an_agent_of_another_version_carried_out_is_not_repeated(op: str, tmp_path: Path) -> None:
    """Records carry the operation's name, whatever the handler is called."""
    folder = tmp_path / "training_runs" / f".requests-{os.geteuid()}"
    folder.mkdir(parents=True)
    digest = hashlib.sha256(b"key").hexdigest()[:32]
    rows = ({"time": 1.0, "found": {}}, {"reply": {"run": "r", "started": True}})
    (folder / f"{op}-{digest}.jsonl").write_text("".join(f"\n{json.dumps(row)}\n" for row in rows))
    request = SimpleNamespace(idempotency_key="key", recall=False)
    box = BoxContext.from_settings({"root": str(tmp_path)})
    assert HANDLERS[op](box, request) == {"run": "r", "started": False}
    assert [file.name for file in folder.iterdir()] == [f"{op}-{digest}.jsonl"]


def test_what_changes_state_is_carried_out_once() -> None:
    assert set(CHANGES) == {name for name, operation in OPERATIONS.items() if operation.changes_state}
