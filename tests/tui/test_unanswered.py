"""Requests without an answer: kept on this machine, and asked about when the box is connected again."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from grpo_tui.dialogs.launch import LaunchScreen
from grpo_tui.kit.dialog import StopScreen
from remote.protocol import RemoteError
from tests.tui.conftest import BOX, Start, opened, press_button, problem
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN

TIMEOUT = RemoteError("timeout", "'stop' was sent but not answered: the link broke")


def kept() -> list[Path]:
    return sorted((Path(os.environ["XDG_STATE_HOME"]) / "grpo-tui/unanswered").glob("*.json"))


def silent_box(*ops: str) -> Any:
    """A box that does not answer these operations."""

    def silent(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if params.get("dry_run"):
            return {"argv": ["grpo-train"], "shell_argv": []}
        raise TIMEOUT

    def script(client: FakeClient) -> None:
        learning_box(client).answers.update(dict.fromkeys(ops, silent))

    return script


def keep(op: str, age_s: float = 0.0, **params: Any) -> None:
    """A request of an earlier start of the app."""
    folder = Path(os.environ["XDG_STATE_HOME"]) / "grpo-tui/unanswered"
    folder.mkdir(parents=True, exist_ok=True)
    request = {
        "key": op, "op": op, "params": {**params, "idempotency_key": op}, "box": BOX.name, "address": BOX.address(),
        "root": BOX.root, "time": time.time() - age_s,
    }  # fmt: skip
    (folder / f"{op}.json").write_text(json.dumps(request))


async def test_an_answered_request_is_forgotten(start: Start) -> None:
    async with start(wait="87/200") as session:
        await opened(session, "s", StopScreen)
        await session.press("enter")
        await session.until(lambda: "stop requested" in session.messages())
        assert session.client.asked_for("stop")[0]["idempotency_key"]
        assert not kept()


async def test_an_unanswered_request_is_kept_and_recalled(start: Start) -> None:
    async with start(silent_box("stop"), wait="87/200") as session:
        await opened(session, "s", StopScreen)
        await session.press("enter")
        await session.until_text("the link broke before the box answered the stop")
        (file,) = kept()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        first = session.client.asked_for("stop")[0]
    async with start(wait="87/200") as session:
        await session.until(lambda: "stop requested" in session.messages())
        (again,) = session.client.asked_for("stop")
        assert (again["idempotency_key"], again["recall"]) == (first["idempotency_key"], True)
        await session.until(lambda: not kept())


async def test_a_request_that_did_not_arrive_is_named(start: Start) -> None:
    def forgetful(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("not_received", "the box has not received this kill")

    def script(client: FakeClient) -> None:
        learning_box(client).answers["kill"] = forgetful

    keep("kill", run=RUN)
    async with start(script, wait="87/200") as session:
        await session.until(lambda: f"kill of {RUN} was not carried out" in session.messages())
        assert not kept()


@pytest.mark.parametrize(("age_s", "recall"), [(20.0, False), (7200.0, True)])
async def test_a_recent_launch_is_asked_again(start: Start, age_s: float, recall: bool) -> None:
    keep("launch", age_s, config_text="x", config_name="config/x.yaml", run_name="mine")
    async with start(wait="87/200") as session:
        await session.until(lambda: "mine launched" in session.messages())
        (again,) = session.client.asked_for("launch")
        assert again["recall"] is recall
        await session.until(lambda: session.app.store.selected == "mine")
        assert not kept()


async def test_readonly_asks_nothing_again(start: Start) -> None:
    keep("stop", run=RUN)
    async with start(wait="87/200", readonly=True) as session:
        await session.pass_time(5)
        assert not session.client.asked_for("stop")
        assert kept()


async def test_a_launch_repeated_by_hand_has_the_same_key(start: Start) -> None:
    def script(client: FakeClient) -> None:
        silent_box("launch")(client)
        client.answers["read_config"] = {"name": "x", "text": "task: {name: addition}\n"}

    async with start(script, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        for count in (1, 2):
            await press_button(session)
            await session.until(
                lambda count=count: len([p for p in session.client.asked_for("launch") if not p["dry_run"]]) == count
            )
            await session.until(lambda: "the link broke" in problem(session))
        first, second = (p["idempotency_key"] for p in session.client.asked_for("launch") if not p["dry_run"])
        assert first == second
        session.client.answers["launch"] = lambda client, params: (_ for _ in ()).throw(RemoteError("io", "no"))
        await press_button(session)
        await session.until(lambda: not kept())
