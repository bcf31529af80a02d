from __future__ import annotations

import pytest
from textual import events

from grpo_tui.kit.desk import PAUSE_S
from grpo_tui.kit.dialog import AttachScreen, ConfirmScreen, MessageScreen, StopScreen
from grpo_tui.views.home.screen import HomeScreen
from remote.boxes import Box
from remote.protocol import RemoteError
from tests.tui.conftest import Start, opened
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN


async def test_stop_asks(start: Start) -> None:
    async with start(wait="87/200") as session:
        await opened(session, "s", StopScreen)
        await session.until_text(f"Stop {RUN} on h200-a after step 88?", "r resumes it later")
        await session.press("escape")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        assert not session.client.asked_for("stop")
        await opened(session, "s", StopScreen)
        await session.press("enter")
        await session.until(lambda: session.client.asked_for("stop"))
        assert session.client.asked_for("stop")[0]["run"] == RUN
        await session.until(lambda: "stop requested" in session.messages())
        assert "step 88" in session.messages()
        session.client.runs[0]["stop_asked"] = True
        session.client.report()
        screen = await session.until_text(f"{RUN}  stopping")
        assert "ETA" not in screen
        assert "● run…" not in screen  # in the list, too
        await session.press("s")
        await session.until(lambda: "already requested" in session.messages())
        assert len(session.client.asked_for("stop")) == 1


async def test_what_arrives_with_the_key_of_a_note_is_typed_into_it(start: Start) -> None:
    async with start(wait="87/200") as session:
        for typed in ("t", *"sK"):  # in one piece, as over a slow link
            session.app.post_message(events.Key(typed, typed))
        await session.until(lambda: getattr(session.app.focused, "value", "") == "sK", "the text")
        assert not session.client.asked_for("stop")


@pytest.mark.parametrize("view", ["1", "2", "3", "4"])
async def test_what_arrives_with_the_key_of_a_line_is_typed_into_it(start: Start, view: str) -> None:
    async with start(wait="87/200") as session:
        await session.press(view)
        for typed in ("slash", *"slrK"):  # in one piece, as over a slow link
            session.app.post_message(events.Key(typed, typed if len(typed) == 1 else None))
        await session.until(lambda: session.app.focused is not None and session.app.focused.id != "runs", "the line")
        await session.until(lambda: getattr(session.app.focused, "value", "") == "slrK", "the text")
        assert not session.client.asked_for("stop")


async def test_keys_after_a_prompt_that_did_not_open_are_dropped(start: Start) -> None:
    """What was meant for a filter line must not evaluate, stop or change the view."""

    def without_runs(client: FakeClient) -> None:
        client.runs = []

    async with start(without_runs, wait="no runs yet") as session:
        await session.press("slash", *"s2e")
        await session.until(lambda: "no runs to filter" in session.messages())
        assert isinstance(session.app.screen, HomeScreen)
        await session.press("enter", "2")
        await session.until(lambda: session.app.views.name == "charts", "the first key after enter")
        await session.press("1", "slash", "3")
        assert session.app.views.name == "home"
        await session.pass_time(PAUSE_S + 0.1)
        await session.press("3")
        await session.until(lambda: session.app.views.name == "rollouts", "a key after a pause")


async def test_what_arrives_with_the_key_of_a_line_for_a_session_is_typed_into_it(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("5")
        for typed in ("i", *"sK"):
            session.app.post_message(events.Key(typed, typed))
        await session.until(lambda: getattr(session.app.focused, "value", "") == "sK", "the text")


@pytest.mark.parametrize(("view", "key", "why"), [("1", "t", "--readonly"), ("5", "i", "no tmux session")])
async def test_text_for_a_dialog_that_did_not_open_is_dropped(start: Start, view: str, key: str, why: str) -> None:
    def without_sessions(client: FakeClient) -> None:
        learning_box(client).sessions = []

    async with start(without_sessions, wait="87/200", readonly=view == "1") as session:
        await session.press(view)
        for typed in (key, *"s2?"):
            session.app.post_message(events.Key(typed, typed))
        await session.until(lambda: why in session.messages())
        await session.press("enter", "4")
        await session.until(lambda: session.app.views.name == "logs", "the first key after enter")
        assert "not available" not in session.messages().replace("note: not available", "")


async def test_refused_request_is_a_dialog(start: Start) -> None:
    def refuse(client: FakeClient, params: dict) -> dict:  # type: ignore[type-arg]
        raise RemoteError("disk", "the disk is full [0 bytes left]", "free some space")

    async with start(wait="87/200") as session:
        session.client.answers["stop"] = refuse
        await opened(session, "s", StopScreen)
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, MessageScreen))
        await session.until_text("the disk is full [0 bytes left]", "free some space")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_kill_of_a_finished_run_ends_its_evaluation(start: Start) -> None:
    async with start(wait="87/200") as session:
        run = "run_2026-11-20_22-10-41"
        session.client.sessions.append({"name": f"eval_{run}", "run": run, "dead": False})
        session.client.report()
        await session.press("down")
        await session.until_text(f"{run}  finished", "evaluating")
        await session.press("K")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.until_text("Kill the evaluation of")
        await session.press("tab", "enter")
        await session.until(lambda: session.client.asked_for("kill"))
        request = session.client.asked_for("kill")[-1]
        assert (request["session"], request.get("run")) == (f"eval_{run}", None)
        await session.until(lambda: f"evaluation of {run} killed" in session.messages())


async def test_kill_asks_with_focus_on_cancel(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.until_text("step_30")
        await session.press("K")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.until_text(RUN, "h200-a", "step 87", "57 steps since the last checkpoint")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        assert not session.client.asked_for("kill")
        await session.press("K")
        await session.until(lambda: isinstance(session.app.screen, ConfirmScreen))
        await session.press("tab", "enter")
        await session.until(lambda: session.client.asked_for("kill"))
        await session.until(lambda: "no processes are left" in session.messages())


async def test_attach_names_the_detach_keys(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    monkeypatch.setattr("grpo_tui.kit.attach.tmux_prefix", lambda socket: "C-a")
    async with start(wait="87/200", box=Box("local", kind="local", tmux_socket="jobs")) as session:
        await session.until(lambda: session.app.store.sessions_of(RUN))
        await session.press("a")
        await session.until(lambda: isinstance(session.app.screen, AttachScreen))
        await session.until_text("ctrl+a d", RUN)
        await session.press("enter")
        await session.until(lambda: session.foreground)
        assert session.foreground[0][-5:] == ["-L", "jobs", "attach-session", "-t", f"={RUN}"]
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_failed_attach_keeps_the_app_running(start: Start) -> None:
    def explode(argv: list[str]) -> int:
        raise FileNotFoundError("no tmux here")

    async with start(wait="87/200", box=Box("local", kind="local"), foreground=explode) as session:
        await session.until(lambda: session.app.store.sessions_of(RUN))
        await session.press("a")
        await session.until(lambda: isinstance(session.app.screen, AttachScreen))
        await session.press("enter")
        await session.until_text("cannot attach", "no tmux here")


async def test_readonly_sends_no_changes(start: Start) -> None:
    async with start(wait="87/200", readonly=True) as session:
        await session.press("n", "s", "K")
        await session.until(lambda: session.messages().count("--readonly") >= 3)
        assert isinstance(session.app.screen, HomeScreen)
        with pytest.raises(RemoteError, match="--readonly"):
            await session.app.request("kill", run=RUN)


@pytest.mark.parametrize(
    ("saved", "message"),
    [
        ([], "You lose 87 steps (no checkpoint saved yet)."),
        ([80], "You lose 7 steps since the last checkpoint (step_80)."),
        ([86], "You lose 1 step since the last checkpoint (step_86)."),
        ([87], "No steps are lost."),
    ],
)
async def test_kill_names_the_lost_steps(start: Start, saved: list[int], message: str) -> None:
    def script(client: FakeClient) -> None:
        shown = {"checkpoints": [{"step": step} for step in saved], "evaluations": []}
        learning_box(client).answers["show_run"] = shown

    async with start(script, wait="87/200") as session:
        await session.until(lambda: session.app.store.shown_at is not None)
        await opened(session, "K", ConfirmScreen)
        await session.until_text(message)
        await session.press("enter")  # Cancel has the focus
        assert not session.client.asked_for("kill")


async def test_long_message_scrolls(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.show_error("trouble", "\n".join(f"line {n}" for n in range(80)), "the way out")
        await session.until(lambda: isinstance(session.app.screen, MessageScreen))
        await session.until_text("line 0")
        for _ in range(12):
            await session.press("pagedown")
        await session.until_text("the way out")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))


async def test_a_filter_that_matches_nothing_selects_nothing(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"zzz", "enter")
        await session.until(lambda: session.app.store.selected is None)
        text = await session.until_text("no runs match /zzz", "no run selected")
        assert RUN not in text
        session.client.report()
        await session.press("K")
        await session.until(lambda: "no run is in the list" in session.messages())
        assert session.app.store.selected is None
        await session.press("escape")
        await session.until(lambda: session.app.store.selected == RUN)


async def test_no_key_acts_on_a_run_out_of_sight(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.home.set_filter("no such run")
        await session.until_text("no runs match /no such run")
        await session.press("K")
        await session.until(lambda: f"{RUN} is not in the list" in session.messages())
        assert not session.client.asked_for("kill")
        await session.press("escape")
        await session.until_text("87/200")
