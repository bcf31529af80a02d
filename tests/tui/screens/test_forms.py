from __future__ import annotations

import gc
from typing import Any

import pytest
from textual.widgets import Button, Input

from grpo_tui.dialogs.evaluate import EvalScreen
from grpo_tui.dialogs.launch import LaunchScreen
from grpo_tui.views.home.screen import HomeScreen
from grpo_tui.views.view import ViewScreen
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start, fill, opened
from tests.tui.fake import FakeClient, knowing_box


async def test_enter_during_the_check_focuses_the_button(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        await session.until_text("--steps latest")
        monkeypatch.setattr("grpo_tui.dialogs.form.DEBOUNCE_S", 60.0)
        await session.focus("#dataset")
        await session.pilot.press(*"gsm8k", "enter", "enter")
        assert not [request for request in session.client.asked_for("evaluate") if not request["dry_run"]]
        monkeypatch.setattr("grpo_tui.dialogs.form.DEBOUNCE_S", 0.0)
        session.app.screen.preview()  # type: ignore[attr-defined]
        await session.until(lambda: session.app.screen.query_one("#go", Button).has_focus)
        await session.pilot.press("enter", "enter", "enter")
        await session.until(lambda: isinstance(session.app.screen, ViewScreen))
        requests = [request for request in session.client.asked_for("evaluate") if not request["dry_run"]]
        assert [request["eval_dataset"] for request in requests] == ["gsm8k"]


async def test_unchecked_input_is_never_sent(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        go = session.app.screen.query_one("#go", Button)
        await session.until(lambda: not go.disabled)
        fill(session, "overrides", "run.seed=1")
        go.press()  # before the message of the change arrives
        await session.pass_time(0.1)
        assert not [request for request in session.client.asked_for("launch") if not request["dry_run"]]
        await session.until(lambda: not go.disabled)
        go.press()
        await session.until(lambda: isinstance(session.app.screen, ViewScreen))
        requests = [request for request in session.client.asked_for("launch") if not request["dry_run"]]
        assert [request["overrides"] for request in requests] == [["run.seed=1"]]


def sent(session: Session, op: str) -> list[dict[str, Any]]:
    return [request for request in session.client.asked_for(op) if not request["dry_run"]]


@pytest.mark.parametrize("delay", [0, 0.1, 0.3])
@pytest.mark.parametrize("op", ["launch", "evaluate", "resume"])
async def test_enter_before_the_check_sends_when_checked(start: Start, op: str, delay: float) -> None:
    async with start(knowing_box, wait="87/200") as session:
        if op == "resume":
            await session.press("end")
            await session.until_text("run_2026-11-19_09-30-00  stopped")
        session.app.simulate_key({"launch": "n", "evaluate": "e", "resume": "r"}[op])
        if delay:
            await session.pass_time(delay)
        session.app.simulate_key("enter")
        await session.until(lambda: sent(session, op))
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        assert len(sent(session, op)) == 1
        assert session.app.home.maximized is None  # home did not take the key


async def test_escape_takes_back_an_early_enter(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_tui.dialogs.form.DEBOUNCE_S", 60.0)
    async with start(knowing_box, wait="87/200") as session:
        await opened(session, "n", LaunchScreen)
        await session.press("enter")
        await session.until_text("Launching when checked …")
        await session.press("escape")
        await session.until(lambda: "Launching when checked" not in session.text())
        assert isinstance(session.app.screen, LaunchScreen)
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        assert not sent(session, "launch")


async def test_a_problem_takes_back_an_early_enter(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError("engine", "no engine", "")

    def script(client: FakeClient) -> None:
        knowing_box(client).answers["launch"] = refuse

    async with start(script, wait="87/200") as session:
        session.app.simulate_key("n")
        session.app.simulate_key("enter")
        await session.until_text("no engine")
        assert "when checked" not in session.text()
        assert not sent(session, "launch")


@pytest.mark.filterwarnings("error")
async def test_quit_right_after_another_key(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        await session.app.action_act("launch")
        await session.app.action_act("quit")  # before the form could open
    gc.collect()  # warns of a coroutine that was never awaited


async def test_escape_cancels_a_form(start: Start) -> None:
    async with start(knowing_box, wait="87/200") as session:
        for key, screen in (("e", EvalScreen), ("n", LaunchScreen)):
            await opened(session, key, screen)
            await session.press("escape")
            await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        await session.pass_time(1)  # longer than a field's rest
        assert not [request for request in session.client.asked_for("launch") if not request["dry_run"]]
        assert session.messages() == ""


async def test_form_survives_resizing(start: Start) -> None:
    async with start(knowing_box, size=(120, 40), wait="87/200") as session:
        await opened(session, "e", EvalScreen)
        fill(session, "samples", "8")
        for size in ((60, 18), (80, 24), (200, 60), (30, 8), (120, 40)):
            await session.pilot.resize_terminal(*size)
            await session.pilot.pause()
        await session.until_text("Evaluate", "exact command")
        assert session.app.screen.query_one("#samples", Input).value == "8"
