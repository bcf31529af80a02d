"""What the command palette finds: runs, metrics, steps, files and boxes."""

from __future__ import annotations

from pathlib import Path

from grpo_tui.palette import Commands, commands
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box


async def find(session: Session, text: str, hit: str) -> None:
    """Type into the palette and choose its first hit, once that is shown."""
    await session.press("colon")
    await session.until_text("Search for commands")
    await session.press(*("space" if letter == " " else letter for letter in text))
    await session.until_text(hit)
    await session.press("down", "enter")


async def test_commands_are_found_by_their_words(start: Start) -> None:
    """Letters that are scattered over a title find it only where no title has the words."""

    async def found(query: str) -> list[str]:
        commands = Commands(session.app.screen)
        return [str(hit.text).partition(":")[0] async for hit in commands.search(query)]

    async with start(wait="87/200") as session:
        names = await found("eval")
        assert "eval" in names
        assert not {"smooth", "unmark all", "clean up"} & {*names}
        assert "clean up" in await found("clnp")
        names = [command.title.partition(":")[0] for command in commands(session.app)]
        assert len({*names}) == len(names)


async def test_a_run_is_found(start: Start) -> None:
    async with start(wait="87/200") as session:
        await find(session, "run 18", "run run_2026-11-20_18-02-07")
        await session.until(lambda: session.app.store.selected == "run_2026-11-20_18-02-07")


async def test_a_run_outside_the_filter_is_found(start: Start) -> None:
    async with start(wait="87/200") as session:
        session.app.home.set_filter("gsm8k")
        await find(session, "run 18", "run run_2026-11-20_18-02-07")
        await session.until(lambda: session.app.store.selected == "run_2026-11-20_18-02-07")
        assert not session.app.home.filter


async def test_a_step_is_found(start: Start) -> None:
    async with start(wait="87/200") as session:
        await find(session, "step 41", "the charts at this step")
        await session.until_text("step 41", "crosshair")
        assert session.app.views.charts.view.crosshair == 41


async def test_a_metric_is_found(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("2")
        await session.until(lambda: session.app.store.metrics.rows)
        await find(session, "metric clipped", "metric completions/clipped_ratio")
        await session.until(lambda: session.app.views.charts.drawn[:1] == ["completions/clipped_ratio"])


async def test_a_file_is_found(start: Start) -> None:
    async with start(wait="87/200") as session:
        await session.press("colon")
        await session.until(lambda: (files := session.app.store.log_files) and files.files, "the files")
        await session.press("escape")
        await find(session, "file console", "file console.log")
        await session.until(lambda: session.app.views.name == "logs")
        window = session.app.views.logs.window
        assert window is not None
        assert window.path.endswith("logs/console.log")
        await session.until_text("UserWarning: this is a warning")


async def test_a_box_is_found(start: Start, boxes_file: Path) -> None:
    async with start(wait="87/200", boxes_file=boxes_file) as session:
        await find(session, "box h200-b", "box h200-b")
        await session.until(lambda: session.app.connection.box.name == "h200-b")


async def test_thousands_of_runs_are_searched(start: Start) -> None:
    def script(client: FakeClient) -> None:
        learning_box(client)
        client.runs += [{"run": f"sweep_{index}", "state": "finished"} for index in range(9_000)]

    async with start(script, wait="87/200") as session:
        await find(session, "sweep 8999", "run sweep_8999")
        await session.until(lambda: session.app.store.selected == "sweep_8999")
