"""Marking runs on Home."""

from __future__ import annotations

from typing import Any

from grpo_tui.kit.dialog import ConfirmScreen
from grpo_tui.views.home.runs import RunsPanel
from remote.events import RunsReported
from remote.protocol import RemoteError
from tests.tui.box.test_store import store_with
from tests.tui.conftest import Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN, summary

FINISHED = "run_2026-11-20_22-10-41"


async def test_space_marks_and_unmarks(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("space", "down", "space")
        await session.until_text(
            "*● run", "*✔ run_2026-11-20_22", " ✖ run_2026-11-20_18", "2 marked (*): 6 compares them"
        )
        assert list(session.app.store.marks) == [RUN, FINISHED]
        await session.press("space")
        await session.until_text(" ✔ run_2026-11-20_22", "1 marked (*)")
        await session.press("u")
        await session.until(lambda: "marked" not in session.text())


async def test_a_mark_ends_with_its_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("space", "down", "space")
        await session.until_text("2 marked (*)")
        session.client.runs = [summary("run_newer", "starting"), *session.client.runs[1:]]
        session.client.report()
        await session.until_text("run_newer", "1 marked (*)", "*✔ run_2026-11-20_22")


async def test_the_mouse_and_the_palette_mark(start: Start) -> None:
    async with start(size=(200, 60), wait="87/200") as session:
        line = session.text().splitlines()[-2]
        await session.pilot.click(offset=(line.index("space mark"), session.app.size.height - 2))
        await session.until_text("1 marked (*)")
        await session.press("colon", *"unmark all", "enter")
        await session.until(lambda: not session.app.store.marks)
        assert session.app.screen.query_one(RunsPanel)


def test_marks_survive_updates_of_the_list() -> None:
    store, _ = store_with(summary("a", "running"), summary("b", "finished"), summary("c", "finished"))
    for run in ("c", "a"):
        assert store.marks.toggle(run)
    store.apply(RunsReported([summary("b", "finished"), summary("c", "unreadable"), summary("a", "crashed")]))
    assert list(store.marks) == ["c", "a"]
    store.apply(RunsReported([summary("b", "finished"), summary("c", "finished")]))
    assert list(store.marks) == ["c"]
    assert not store.marks.toggle("c")


def two_live(client: FakeClient) -> None:
    learning_box(client)
    client.runs.insert(1, summary("run_other", "running", step=40))


async def test_marked_runs_are_stopped_together(start: Start) -> None:
    async with start(two_live, wait="87/200") as session:
        await session.press("space", "down", "space", "down", "space", "s")
        await session.until_text("stop marked runs", "run_other", "Marked, but left out", "is not running (finished)")
        await session.press("enter")  # Cancel has the focus
        await session.until(lambda: not isinstance(session.app.screen, ConfirmScreen))
        assert not session.client.asked_for("stop")
        await session.press("s")
        await session.until_text("Stop 2 runs")
        await session.press("right", "enter")
        await session.until(lambda: "2 runs: stop requested" in session.messages())
        assert [params["run"] for params in session.client.asked_for("stop")] == [RUN, "run_other"]


async def test_a_kill_of_marked_runs_names_the_loss(start: Start) -> None:
    def refuse_one(client: FakeClient, params: dict[str, Any]) -> dict[str, Any]:
        if params["run"] == RUN:
            raise RemoteError("not_ours", "another account's")
        return {"run": params["run"], "state": "killed", "left": []}

    def script(client: FakeClient) -> None:
        two_live(client)
        client.answers["kill"] = refuse_one

    async with start(script, wait="87/200") as session:
        await session.press("space", "down", "space", "K")
        await session.until_text("kill marked runs", "at step 87: 57 steps are lost (step_30)", "at step 40: 10 steps")
        await session.press("right", "enter")
        await session.until_text(f"{RUN}: another account's")  # and the other one is killed all the same
        await session.until(lambda: "1 run: killed" in session.messages())


async def test_marked_runs_are_evaluated_together(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("down", "space", "down", "space", "e")
        await session.until_text("Evaluate 2 runs", FINISHED)
        await session.press("right", "enter")
        await session.until(lambda: "2 runs: evaluation started" in session.messages())
        assert [params["steps"] for params in session.client.asked_for("evaluate")] == ["latest", "latest"]
        await session.press("2")
        await session.until(lambda: session.app.views.name == "charts")
        assert not session.app.situation().marked, "elsewhere keys act on the run that is shown"
