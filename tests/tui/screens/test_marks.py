"""Marking runs on Home."""

from __future__ import annotations

from grpo_tui.widgets.runs import RunsPanel
from remote.events import RunsReported
from tests.tui.conftest import Start
from tests.tui.fake import RUN, summary
from tests.tui.model.test_store import store_with

FINISHED = "run_2026-11-20_22-10-41"


async def test_space_marks_and_unmarks(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("space", "down", "space")
        await session.until_text("*● run", "*✔ 11-20 22:10", " ✖ 11-20 18:02", "2 marked (*): 6 compares them")
        assert list(session.app.store.marks) == [RUN, FINISHED]
        await session.press("space")
        await session.until_text(" ✔ 11-20 22:10", "1 marked (*)")
        await session.press("u")
        await session.until(lambda: "marked" not in session.text())


async def test_a_mark_ends_with_its_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("space", "down", "space")
        await session.until_text("2 marked (*)")
        session.client.runs = [summary("run_newer", "starting"), *session.client.runs[1:]]
        session.client.report()
        await session.until_text("run_newer", "1 marked (*)", "*✔ 11-20 22:10")


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
