"""Home: the filter of the list, and the list saved as it is filtered."""

from __future__ import annotations

from pathlib import Path

from tests.tui.conftest import Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import RUN


async def test_filter_hides_runs(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"crash")
        await session.until_text("/crash", "1 of 4 · sorted")
        await session.press("enter", "escape")
        await session.until(lambda: "1 of 4 · sorted" not in session.text())


async def test_filter_selects_a_matching_run(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"crash", "enter")
        await session.until(lambda: session.app.store.run and session.app.store.run.state == "crashed", "the selection")
        await session.until_text("crashed", "rank 1 was killed by SIGKILL")


async def test_filter_text_is_not_markup(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"[red", "enter")
        await session.until_text("runs /[red 0 of 4", "no runs match /[red")
        assert session.app.store.selected == RUN


async def test_a_mistake_keeps_the_last_list(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("slash", *"reward>1.5 step<90")
        await session.until_text("1 of 4 · sorted")
        await session.press("space", "(")
        await session.until_text("^ a condition is missing after '('")
        assert [row.name for row in session.app.home.runs.rows] == [RUN], "the last good list"
        await session.press("backspace", *"reward>high")
        await session.until_text("^ reward is compared with a number")
        assert [row.name for row in session.app.home.runs.rows] == [RUN], "the list of the rest"
        await session.press("escape")
        await session.until(lambda: len(session.app.home.runs.rows) == 4)


async def test_the_filter_reads_metrics_and_config(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        for row, rate, kl in zip(client.runs, (1e-6, 2e-6, 3e-6), (0.1, 0.2, 0.3), strict=False):
            client.facts[row["run"]] = {"config": {"optimizer.learning_rate": rate}, "metrics": {"kl": kl}}

    async with start(script, wait="87/200") as session:
        for text, count in (("lr>=2e-6", 2), ("kl<0.15 or kl>0.25", 2), ("not (state:crashed or lr=1e-6)", 2)):
            await session.press("slash", *text)
            await session.until_text(f"{count} of 4")
            await session.press("escape")


async def test_an_unknown_field_is_named(start: Start) -> None:
    async with start(wait="87/200") as session:
        for text, said in (("rewrd>1", "no run has rewrd: did you mean reward?"), ("foo=1", "no run has foo")):
            await session.press("slash", *"state:running")
            await session.until_text("1 of 4 · sorted")
            await session.press(*f" {text}")
            await session.until_text(f"^ {said}")
            assert [row.name for row in session.app.home.runs.rows] == [RUN], "the list of the rest"
            await session.press("escape")
            await session.until(lambda: len(session.app.home.runs.rows) == 4)


async def test_the_list_is_saved_as_shown(start: Start, downloads: Path) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs[1]["note"] = "=best"
        client.facts[client.runs[1]["run"]] = {"config": {"optimizer.learning_rate": 2e-6}}

    async with start(script, wait="87/200") as session:
        session.app.home.runs.columns = ("note", "optimizer.learning_rate", "state", "step", "took")
        await session.press("slash", *"state:running,finished", "enter")
        await session.until_text("2 of 4", "2e-6")
        session.app.home.sort_by("name")
        await session.press("E")
        await session.until(lambda: "saved 2 runs" in session.notifications())
        assert (downloads / "h200-a_runs.csv").read_text().splitlines() == [
            "run,note,optimizer.learning_rate,state,step,total_steps,took_s",
            "run_2026-11-20_22-10-41,'=best,2e-06,finished,100,100,600.0",
            f"{RUN},,,running,87,200,602.0",
        ]
