"""Whether a box can be terminated: the light in every view, and the list of what forbids it."""

from __future__ import annotations

import pytest
from textual.widgets import Button

from grpo_tui.dialogs.backups import BackUpAllScreen, TerminationScreen
from remote.protocol import RemoteError
from tests.tui.conftest import Start, opened
from tests.tui.fake import FakeClient, learning_box

BEHIND = {
    "kind": "training_runs", "name": "night", "code": "behind", "reason": "not in snapshot 7: steps 40",
    "command": "grpo-train backup --training-run night",
}  # fmt: skip


def over(client: FakeClient) -> None:
    """A box on which nothing is live."""
    learning_box(client)
    client.runs[0]["state"] = "finished"


def without_backups(client: FakeClient) -> None:
    """As over(), with eleven runs that have no backup."""
    over(client)
    rows = [{**BEHIND, "code": "no_backup", "name": f"run_{number}"} for number in range(11)]
    client.answers["safe_to_terminate"] = {
        "safe": False, "kept": "", "obstacles": rows, "count": 11, "whole": True, "age_s": 1.0, "again_s": 10.0,
    }  # fmt: skip


async def test_the_light_is_in_every_view(start: Start) -> None:
    async with start(script=over, wait="87/200") as session:
        await session.until_text("safe to terminate")
        for key in "23456":
            await session.press(key)
            await session.until(lambda: "safe to terminate" in session.text().partition("\n")[0])
        session.client.runs[0]["state"] = "running"
        session.client.report()
        await session.until_text("keep the box: 1 run live")


async def test_all_that_forbids_it_is_listed(start: Start) -> None:
    def script(client: FakeClient) -> None:
        over(client)
        client.answers["safe_to_terminate"] = {
            "safe": False, "kept": "", "obstacles": [BEHIND, {"name": "other", "unreadable": "x"}], "count": 700,
            "whole": True, "age_s": 1.0, "again_s": 10.0,
        }  # fmt: skip

    async with start(script=script, wait="87/200") as session:
        await session.until_text("keep the box: night is ahead of its backup, 699 more")
        await opened(session, "T", TerminationScreen)
        await session.until_text(
            "700 things", "the first 2 are listed", "not in snapshot 7: steps 40", BEHIND["command"]
        )
        assert {"now": True} in session.client.asked_for("safe_to_terminate")
        await session.press("y")
        await session.until(lambda: "copied: command for the box" in session.messages())


async def test_all_runs_are_backed_up(start: Start) -> None:
    async with start(script=without_backups, wait="87/200") as session:
        await opened(session, "T", TerminationScreen)
        await session.until_text("B backs up all 11 runs without one")
        await opened(session, "B", BackUpAllScreen)
        await session.until_text("Back up 11 runs, 8 evaluations and sweeps: 3.2 GB?", "s3", "in tmux on the box")
        assert not session.client.asked_for("back_up_all")
        await session.press("enter")
        await session.until(lambda: session.client.asked_for("back_up_all"))
        await session.until_text("↑ backing up all runs")
        assert "backup of all runs started" in session.messages()


@pytest.mark.parametrize(("runs", "others", "size"), [(1, 1, 5.0), (0, 1, 5.0), (0, 0, 0.0)])
async def test_what_there_is_to_send_can_be_sent(start: Start, runs: int, others: int, size: float) -> None:
    def script(client: FakeClient) -> None:
        without_backups(client)
        client.answers["plan_back_up_all"] = {"runs": runs, "others": others, "bytes": size, "problems": []}

    async with start(script=script, wait="87/200") as session:
        await opened(session, "T", TerminationScreen)
        await session.until_text("B backs up all 11 runs without one")
        await opened(session, "B", BackUpAllScreen)
        await session.until_text("Back up " if runs or others else "Nothing to send: the backup has everything.", "s3")
        assert session.app.screen.query_one("#yes", Button).disabled == (not runs and not others)


async def test_a_root_without_runs_loses_nothing(start: Start) -> None:
    def script(client: FakeClient) -> None:
        over(client)
        row = {
            "kind": "/data",
            "name": "training_runs",
            "code": "no_runs",
            "reason": "it does not exist",
            "command": "",
        }
        client.answers["safe_to_terminate"] = {
            "safe": False, "kept": "", "obstacles": [row], "count": 1, "whole": True, "age_s": 1.0, "again_s": 10.0,
        }  # fmt: skip

    async with start(script=script, wait="87/200") as session:
        await session.until_text("■ no runs here: no run was launched")
        assert "keep the box" not in session.text()
        await opened(session, "T", TerminationScreen)
        text = await session.until_text("no runs here", "the disk of the root is not mounted")
        assert "1 thing would be lost" not in text


async def test_a_box_that_does_not_say_is_kept(start: Start) -> None:
    def script(client: FakeClient) -> None:
        over(client)

        def refuse(client: FakeClient, params: object) -> None:
            raise RemoteError("no_answer", "the engine on this box is too old")

        client.answers["safe_to_terminate"] = refuse

    async with start(script=script, wait="87/200") as session:
        await session.until_text("keep the box: not known: the engine on this box is too old")
        await opened(session, "T", TerminationScreen)
        await session.until(lambda: session.text().count("not known: the engine on this box is too old") == 2)
