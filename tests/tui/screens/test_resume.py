from __future__ import annotations

from typing import Any

import pytest
from textual.widgets import Input, Select

from grpo_tui.dialogs.resume import CodeDiffersScreen, ResumeScreen, WorkflowEditsScreen
from grpo_tui.views.home.screen import HomeScreen
from remote.gate import reply
from remote.protocol import RemoteError
from tests.tui.conftest import Session, Start, press_button, select
from tests.tui.fake import DEFAULT_ANSWERS, FakeClient, learning_box
from tests.tui.fake_rows import summary

STOPPED = "run_2026-11-19_09-30-00"


async def test_resume(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("r")
        await session.until(lambda: "stop it first" in session.messages())
        await select(session, STOPPED)
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
        await session.until_text("→ more steps: enter how many")
        assert "✖" not in session.text(), "what is missing is not an error"
        more = session.app.screen.query_one("#more", Input)
        more.value = "-"
        await session.until(lambda: more.has_class("-invalid"))
        more.value = ""
        await session.until(lambda: not more.has_class("-invalid"), "an empty field is not red")


async def test_a_secret_in_an_override_is_never_sent(start: Start) -> None:
    """Nor for a run of another version, whose config this program cannot check."""

    def script(client: FakeClient) -> None:
        newer = {"config_text": "a_newer: section\n"}
        show = DEFAULT_ANSWERS["show_run"]
        learning_box(client).answers["show_run"] = lambda client, params: {**show(client, params), **newer}

    async with start(script, wait="87/200") as session:
        await select(session, STOPPED)
        await session.press("r")
        await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
        await session.until_text("--from-step latest")
        session.app.screen.query_one("#overrides", Input).value = "run.hf_token=qqqq"
        await session.until_text("'run.hf_token' holds a Hugging Face token", "hf auth login")
        assert not [params for params in session.client.asked_for("resume") if params.get("overrides")]


# ------------------------------------------------------------------------------------------------- edited workflows

STEPS = range(10, 70, 10)
EDITS = [
    *({"change": "kept", "stage": f"train to step {step}", "done": step <= 30} for step in STEPS),
    {"change": "removed", "stage": "back up at step 60", "done": False},
    {"change": "added", "stage": "back up at step 60 (to s3)", "done": False},
]
LEFT = [f"train to step {step}" for step in (40, 50, 60)] + ["back up at step 60 (to s3)"]


def edited_box(client: FakeClient) -> None:
    """A box on which the workflow of a run was edited."""

    def plan(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        found = {"run": params["run"], "host": "gpu-17", "step": 30, "total_steps": 60, "left": LEFT, "edits": EDITS}
        return reply("plan_resume", {"ok": True, "result": {**found, "confirmation": "c0ffee"}})

    def resume(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if not params.get("dry_run") and params.get("confirmation") != "c0ffee":
            raise RemoteError("workflow_edited", "the workflow was edited", "confirm the edited stages")
        return DEFAULT_ANSWERS["resume"](client, params)

    learning_box(client).answers.update(plan_resume=plan, resume=resume)


async def send_resume(session: Session) -> None:
    await select(session, STOPPED)
    await session.press("r")
    await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
    await session.until_text("--from-step latest")
    await press_button(session)


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 60)])
async def test_an_edited_workflow_is_confirmed(start: Start, size: tuple[int, int]) -> None:
    async with start(edited_box, wait="87/200", size=size) as session:
        await send_resume(session)
        await session.until(lambda: isinstance(session.app.screen, WorkflowEditsScreen))
        await session.until_text(f"The stages of {STOPPED} were edited", "gpu-17 (h200-a)", "from step 30, up to step")
        await session.until_text("… 5 unchanged stages", "- back up at step 60", "+ back up at step 60 (to s3)")
        await session.press("enter")  # Cancel has the focus
        await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
        assert not any(params.get("confirmation") for params in session.client.asked_for("resume"))
        await press_button(session)
        await session.until(lambda: isinstance(session.app.screen, WorkflowEditsScreen))
        await session.press("right", "enter")
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        sent = [params for params in session.client.asked_for("resume") if not params.get("dry_run")]
        assert [params.get("confirmation") for params in sent] == [None, None, "c0ffee"]
        assert {params["run"] for params in session.client.asked_for("plan_resume")} == {STOPPED}


@pytest.mark.parametrize(("keys", "chosen"), [(["enter"], "then"), (["right", "enter"], "now"), (["escape"], None)])
async def test_code_that_differs_is_chosen(start: Start, keys: list[str], chosen: str | None) -> None:
    def script(client: FakeClient) -> None:
        def resume(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
            if not params.get("dry_run") and not params.get("code"):
                raise RemoteError("code_differs", "the code of r differs: 1a then, 2b now", "resume it with --code")
            return DEFAULT_ANSWERS["resume"](client, params)

        learning_box(client).answers["resume"] = resume

    async with start(script, wait="87/200") as session:
        await send_resume(session)
        await session.until(lambda: isinstance(session.app.screen, CodeDiffersScreen))
        await session.until_text("the code of r differs: 1a then, 2b now", "A resume can take either")
        await session.press(*keys)
        await session.until(lambda: isinstance(session.app.screen, HomeScreen if chosen else ResumeScreen))
        sent = [params for params in session.client.asked_for("resume") if not params.get("dry_run")]
        assert [params.get("code") for params in sent] == ([None, chosen] if chosen else [None])


async def test_an_unanswered_resume_does_not_ask_twice(start: Start) -> None:
    async with start(edited_box, wait="87/200") as session:
        answer, lost = session.client.answers["resume"], RemoteError("timeout", "no answer")

        def lose(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
            if params.get("confirmation"):
                client.answers["resume"] = answer
                raise lost
            return dict(answer(client, params))

        session.client.answers["resume"] = lose
        await send_resume(session)
        await session.until(lambda: isinstance(session.app.screen, WorkflowEditsScreen))
        await session.press("right", "enter")
        await session.until(lambda: isinstance(session.app.screen, ResumeScreen))
        await press_button(session)
        await session.until(lambda: isinstance(session.app.screen, HomeScreen))
        keys = [params["idempotency_key"] for params in session.client.asked_for("resume") if "confirmation" in params]
        assert len(keys) == 2
        assert keys[0] == keys[1]


async def test_an_engine_too_old_to_compare_is_named(start: Start) -> None:
    def script(client: FakeClient) -> None:
        def refuse(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
            if params.get("dry_run"):
                return dict(DEFAULT_ANSWERS["resume"](client, params))
            raise RemoteError("old_engine", "box engine 0.1.5 is too old for this", "on the box: git pull")

        learning_box(client).answers["resume"] = refuse

    async with start(script, wait="87/200") as session:
        await send_resume(session)
        await session.until_text("box engine 0.1.5 is too old for this", "on the box: git pull")
