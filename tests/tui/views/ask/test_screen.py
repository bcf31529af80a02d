"""Questions to checkpoints on a scripted box."""

from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Input

from grpo_tui.kit.dialog import ConfirmScreen
from grpo_tui.views.ask.screen import AskScreen, DeviceScreen
from remote.events import Link, LinkChanged
from remote.protocol import RemoteError
from remote.protocol.frames import EngineVersion
from tests.tui.conftest import Session, Start, fill, opened
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_ask import ANSWERS_FILE, ASK_ID, completion, piece, question, question_id, ready
from tests.tui.fake_rows import RUN, jsonl

FIRST, SECOND = question_id(1), question_id(2)


async def asking(session: Session, prompt: str = "", **fields: str) -> AskScreen:
    """Open the screen, fill it and press enter."""
    await opened(session, "Q", AskScreen)
    screen = session.app.screen
    assert isinstance(screen, AskScreen)
    if prompt:
        await ask(session, prompt, **fields)
    return screen


async def ask(session: Session, prompt: str, **fields: str) -> None:
    asked = len(session.client.asked_for("ask"))
    for field, value in {**fields, "prompt": prompt}.items():
        fill(session, field, value)
    await session.press("enter")
    await session.until(lambda: len(session.client.asked_for("ask")) > asked, "the question")


def say(session: Session, *rows: dict[str, Any]) -> None:
    """Let the process write events."""
    session.client.append(ANSWERS_FILE, jsonl(list(rows)))


def without_key(params: dict[str, Any]) -> dict[str, Any]:
    assert params["idempotency_key"]
    return {name: value for name, value in params.items() if name != "idempotency_key"}


async def test_answers_appear_as_they_are_drawn(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await asking(session)
        assert screen.query_one("#checkpoints", Input).value == "30", "the newest"
        assert session.client.asked_for("open_ask") == [], "opening the screen starts nothing"
        await ask(session, "#12", checkpoints="30, 0", count="2", temperature="0.7", seed="5")
        (start_params,) = session.client.asked_for("open_ask")
        assert without_key(start_params) == {"run": RUN, "steps": [30, 0], "device": ""}
        (params,) = session.client.asked_for("ask")
        wanted = {"ask": ASK_ID, "index": 12, "count": 2, "temperature": 0.7, "seed": 5}
        assert without_key(params) == wanted
        await session.until_text("step_30 beside step_0 · starting", "#12")
        say(session, *ready("step_30", "step_0"), question(FIRST, "12 + 30?", 12, "42"))
        await session.until_text("cuda:0 · answering", "12 + 30?", "expected 42")
        say(session, piece(FIRST, "step_30", 0, "12 + 30 "), piece(FIRST, "step_30", 1, "maybe"))
        await session.until_text("▸ drawing", "12 + 30", "maybe", "waiting")
        right = {"correct": True, "rewards": {"accuracy": 2.0}}
        say(session, completion(FIRST, "step_30", 0, "12 + 30 = 42", **right))
        say(session, completion(FIRST, "step_0", 0, "none", correct=False, reason="no_answer", truncated=True))
        say(session, {"event": "done", "id": FIRST})
        text = await session.until_text("✔ right   accuracy 2", "✖ wrong   no answer", "✂ truncated", "0 · ready")
        (both,) = [line for line in text.splitlines() if "12 + 30 = 42" in line]
        assert "none" in both, "side by side"
        await ask(session, "why?")
        assert len(session.client.asked_for("open_ask")) == 1, "the model stays loaded"
        assert without_key(session.client.asked_for("ask")[1])["prompt"] == "why?"


async def test_the_process_ends_with_the_screen(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        await ask(session, "2+2", checkpoints="20")
        assert [without_key(each)["steps"] for each in session.client.asked_for("open_ask")] == [[30], [20]]
        assert [without_key(each) for each in session.client.asked_for("close_ask")] == [{"ask": ASK_ID}]
        await session.press("escape")
        await session.until(lambda: len(session.client.asked_for("close_ask")) == 2)
        assert ANSWERS_FILE not in session.client.follows.values()
        await opened(session, "Q", AskScreen)
        await session.press("escape")
        await session.until(lambda: session.app.screen is session.app.home)
        assert len(session.client.asked_for("close_ask")) == 2, "nothing was started"


async def test_escape_stops_the_answer_first(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        say(session, *ready("step_30"), question(FIRST, "1+1"), piece(FIRST, "step_30", 0, "one and"))
        await session.until_text("cuda:0 · answering")
        await session.press("escape")
        await session.until_text("stopping the answer")
        (params,) = session.client.asked_for("cancel_answer")
        assert without_key(params) == {"ask": ASK_ID, "question": FIRST}
        say(session, {"event": "done", "id": FIRST})
        await session.until_text("cuda:0 · ready", "cut off")
        assert not session.client.asked_for("close_ask"), "the model stays loaded"
        await session.press("escape")
        await session.until(lambda: bool(session.client.asked_for("close_ask")))


async def test_a_second_escape_does_not_wait(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        say(session, *ready("step_30"), question(FIRST, "1+1"))
        await session.until_text("cuda:0 · answering")
        await session.press("escape", "escape")
        await session.until(lambda: bool(session.client.asked_for("close_ask")))


async def test_quitting_ends_the_process(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        await session.press("ctrl+q")
        await session.until(lambda: not session.app.is_running)
        assert session.client.asked_for("close_ask")


@pytest.mark.parametrize("choice", ["cpu", ""])
async def test_a_busy_gpu_is_the_users_choice(start: Start, choice: str) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        message = "run b is training on this machine; use --device cpu, or --device cuda to share its GPU"
        say(session, {"event": "starting"}, {"event": "failed", "code": "gpu_busy", "message": message})
        await session.until(lambda: isinstance(session.app.screen, DeviceScreen))
        await session.until_text("run b is training on this machine.", "Share the GPU")
        await session.pilot.click(f"#{choice or 'cancel'}")
        await session.until(lambda: isinstance(session.app.screen, AskScreen))
        if choice:
            await session.until(lambda: len(session.client.asked_for("ask")) == 2)
            assert session.client.asked_for("open_ask")[1]["device"] == choice
            assert session.client.asked_for("ask")[1]["prompt"] == "1+1"
            await session.until(lambda: session.text().count("1+1") == 1, "the question, once")
        else:
            assert len(session.client.asked_for("open_ask")) == 1


async def test_an_idle_process_is_started_again(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        say(session, *ready("step_30"), completion(FIRST, "step_30", 0, "two"), {"event": "done", "id": FIRST})
        say(session, {"event": "ended", "code": "idle", "message": "no question for 10 minutes"})
        await session.until_text("no question for 10 minutes; enter starts it again", "two")
        session.client.on_event(LinkChanged(Link.LOST, "gone"))
        await session.until_text("link lost")
        session.client.on_event(session.client.link)
        await ask(session, "2+2")
        await session.until_text("starting", "two", "2+2")
        assert len(session.client.asked_for("open_ask")) == 2


@pytest.mark.parametrize("events", [0, 2])
async def test_a_crash_shows_the_last_lines(start: Start, events: int) -> None:
    async with start(wait="87/200") as session:
        lines = "answering questions of the app\nRuntimeError: it broke\n\nPane is dead (status 1, Mon)"
        session.client.answers["capture_pane"] = {"session": "x", "text": lines}
        await asking(session, "1+1")
        say(session, *ready("step_30")[:events])
        session.client.sessions[-1].update(dead=True, exit_status=1)
        session.client.report()
        said = f"✖ the process ended (exit status 1), tmux session ask_{RUN}"
        text = await session.until_text(said, "RuntimeError: it broke")
        assert "Pane is dead" not in text


async def test_an_engine_that_cannot_be_asked_is_named(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.store.engine = EngineVersion("0.1.9", 2)
        session.client.answers["capture_pane"] = {"session": "x", "text": "No such option: --folder"}
        await asking(session, "1+1")
        session.client.sessions[-1].update(dead=True, exit_status=2)
        session.client.report()
        await session.until_text("box engine 0.1.9 cannot answer questions: upgrade it", "git pull")
        session.client.answers["open_ask"] = refused("too_old", "box engine 0.1.0 cannot answer questions: upgrade it")
        fill(session, "prompt", "1+1")
        await session.press("enter")
        await session.until_text("box engine 0.1.0 cannot answer questions")


def refused(code: str, message: str) -> Any:
    def answer(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        raise RemoteError(code, message)

    return answer


async def test_a_run_that_is_asked_elsewhere(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.client.answers["open_ask"] = refused("session_live", "it is alive")
        await opened(session, "Q", AskScreen)
        fill(session, "prompt", "1+1")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.until_text("is being asked already")
        del session.client.answers["open_ask"]
        await session.pilot.click("#yes")
        await session.until(lambda: session.client.asked_for("ask"))
        assert session.client.asked_for("kill")[0]["session"] == f"ask_{RUN}"


async def test_what_a_model_writes_does_not_steer_the_terminal(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session, "1+1")
        nasty = "\x1b[31mred\x1b]0;title\x07 日本語 \u202e\r[bold]x[/]\x9b2J"
        error = {"event": "error", "id": FIRST, "code": "bad_question", "message": "no problem 999999"}
        say(session, *ready("step_30"), completion(FIRST, "step_30", 0, nasty), error)
        text = await session.until_text("␛[31mred␛]0;title␇ 日本語 ·␍[bold]x[/]·2J", "✖ no problem 999999")
        assert "\x1b" not in text


async def test_a_long_answer_is_bounded(start: Start) -> None:
    async with start(wait="87/200") as session:
        screen = await asking(session, "1+1")
        say(session, *ready("step_30"), *(piece(FIRST, "step_30", 0, f"word {n} " * 500) for n in range(40)))
        await session.until_text("word 39")
        await session.press("ctrl+home")
        await session.until_text("▸ drawing", "characters before", "paused")
        await session.press("ctrl+end")
        say(session, completion(FIRST, "step_30", 0, "word " * 16_000, characters=2_000_000))
        say(session, {"event": "done", "id": FIRST})
        await session.until_text("1,960,000 characters more")
        await session.press("up")
        await session.until_text("paused")
        assert screen.query_one("#prompt", Input).has_focus
        await session.press("ctrl+end")
        await session.until(lambda: "paused" not in session.text())


async def test_wrong_fields_are_named(start: Start) -> None:
    async with start(wait="87/200") as session:
        await asking(session)
        for fields, message in (
            ({"prompt": ""}, "question: type one"),
            ({"prompt": "x", "checkpoints": "7"}, "checkpoints: no complete step 7; there are 0, 10, 20, 30"),
            ({"checkpoints": "10,20,30"}, "checkpoints: one step or two, such as 30, 0; not '10,20,30'"),
            ({"checkpoints": "step_30 0", "count": "65"}, "n: an integer from 1 to 64, not 65"),
            ({"count": "", "temperature": "nan"}, "temperature: a number from 0 to 100, not nan"),
            ({"temperature": "", "seed": "-1"}, "seed: an integer of 0 or more, not -1"),
        ):
            for field, value in fields.items():
                fill(session, field, value)
            await session.press("enter")
            await session.until_text(message)
        assert session.client.asked_for("open_ask") == []


async def test_the_checkpoint_under_the_cursor_is_asked(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until(lambda: session.app.store.checkpoints())
        await session.focus("#summary")
        await session.press("right")
        await asking(session)
        assert session.app.screen.query_one("#checkpoints", Input).value == "20"


async def test_read_only_asks_nothing(start: Start) -> None:
    async with start(learning_box, wait="87/200", readonly=True) as session:
        await session.press("Q")
        await session.until(lambda: "started with --readonly" in session.messages())
