from __future__ import annotations

from textual.widgets import Input, Select

from grpo_tui.forms.resume import ResumeScreen
from grpo_tui.screens.home import HomeScreen
from tests.tui.conftest import Start
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, learning_box, summary


async def test_resume(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("r")
        await session.until(lambda: "stop it first" in session.notifications())
        await session.press("down", "down", "down")
        await session.until_text("run_2026-11-19_09-30-00  stopped")
        await session.press("r")
        await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
        await session.until_text("--from-step latest", "from step 30 to 200", "replaces steps 31 to 40 of the log")
        session.app.screen.query_one("#from", Select).value = "20"
        session.app.screen.query_one("#more", Input).value = "15"
        session.app.screen.query_one("#nproc", Input).value = "4"
        session.app.screen.query_one("#overrides", Input).value = "run.save_evry=5"
        await session.until_text("run.save_evry", "did you mean", "save_every")
        session.app.screen.query_one("#overrides", Input).value = "run.save_every=5"
        await session.until_text("--from-step 20", "from step 20 to 35")
        await session.focus("#go")
        await session.press("enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        request = session.client.asked_for("resume")[-1]
        assert (request["from_step"], request["additional_steps"]) == ("20", 15)
        assert (request["nproc"], request["overrides"]) == (4, ["run.save_every=5"])


async def test_finished_run_needs_more_steps(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs = [summary("done", "finished", step=30, total_steps=30)]

    async with start(script, wait="done") as session:
        await session.press("r")
        await session.until_text("more steps: required")


async def test_a_secret_in_an_override_is_never_sent(start: Start) -> None:
    """Nor for a run of another version, whose config this program cannot check."""

    def script(client: FakeClient) -> None:
        newer = {"config_text": "a_newer: section\n"}
        show = DEFAULT_ANSWERS["show_run"]
        learning_box(client).answers["show_run"] = lambda client, params: {**show(client, params), **newer}

    async with start(script, wait="87/200") as session:
        await session.press("down", "down", "down")
        await session.until_text("run_2026-11-19_09-30-00  stopped")
        await session.press("r")
        await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
        await session.until_text("--from-step latest")
        session.app.screen.query_one("#overrides", Input).value = "run.hf_token=qqqq"
        await session.until_text("'run.hf_token' holds a Hugging Face token", "hf auth login")
        assert not [params for params in session.client.asked_for("resume") if params.get("overrides")]
