"""The crosshair of the charts: it is always on a logged step, and every one of them can be reached."""

from __future__ import annotations

from typing import Any

from grpo_tui.views.charts.screen import ChartsScreen
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import LOGS, jsonl, train_rows

LOGGED = [3 * step for step in range(1, 401)]
"""The steps in the log: fewer than columns when zoomed in, more than columns otherwise."""


def sparse(client: FakeClient) -> None:
    """:func:`learning_box` with every third of 1,200 steps logged, and one value above and one below all others."""
    learning_box(client, steps=1200)
    rows: list[dict[str, Any]] = [row for row in train_rows(1200) if row["step"] in LOGGED]
    for row in rows:
        row["num_tokens"] = 1000 * row["step"] ** 2
        row["grad_norm"] = {741: 9.0, 744: 8.9, 402: 0.01}.get(row["step"], 0.2)
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)


async def charts(session: Session) -> ChartsScreen:
    await session.press("2")
    screen = session.app.views.charts
    await session.until(lambda: screen.curves and screen.curves.curves and screen.curves.is_answered, "curves")
    return screen


async def rest(session: Session, screen: ChartsScreen) -> int:
    """The step that is shown once the crosshair rests on its row."""
    shown = screen.step
    await session.until(lambda: shown.shown and shown.shown["x"] == screen.view.crosshair, "the row at the crosshair")
    assert shown.shown is not None
    return round(shown.shown["step"])


async def test_every_logged_step_is_reached(start: Start) -> None:
    async with start(sparse, wait="1200/200") as session:
        screen = await charts(session)
        await session.press("shift+left")
        assert await rest(session, screen) == 1200
        for expected in (1197, 1194, 1191):
            await session.press("shift+left")
            assert await rest(session, screen) == expected
        await session.press("shift+right")
        assert await rest(session, screen) == 1194
        await session.press("left")
        assert await rest(session, screen) < 1191, "a column has more steps than one"


async def test_the_crosshair_rests_on_a_row(start: Start) -> None:
    async with start(sparse, wait="1200/200") as session:
        screen = await charts(session)
        for x in (1.0, 100.0, 700.4):
            screen.set_crosshair(x)
            assert await rest(session, screen) in LOGGED
            assert screen.view.crosshair in LOGGED
        screen.set_crosshair(600)
        await rest(session, screen)
        for _ in range(7):
            await session.press("plus")
        await session.until(lambda: screen.curves and screen.curves.is_answered)
        await session.press("right")  # a column is less than the distance of two rows
        assert await rest(session, screen) == 603
        await session.press("left")
        assert await rest(session, screen) == 600


async def test_extremes_are_gone_to_on_each_axis(start: Start) -> None:
    async with start(sparse, wait="1200/200") as session:
        screen = await charts(session)
        await session.press("down")
        for axis in ("step", "tokens", "time"):
            await session.until(lambda axis=axis: screen.curves and screen.curves.axis == axis, axis)
            await session.until(lambda: screen.curves and screen.curves.is_answered)
            await session.press("M")
            await session.until_text("step 741", "grad_norm 9.000", "grad_norm: highest value 9.000")
            await session.press("m")
            await session.until_text("step 402", "grad_norm 0.010", "grad_norm: lowest value 0.010")
            session.app.messages.entries.clear()
            await session.press("x")


async def test_a_step_is_gone_to_by_number(start: Start) -> None:
    async with start(sparse, wait="1200/200") as session:
        screen = await charts(session)
        await session.press("number_sign", *"300", "enter")
        assert await rest(session, screen) == 300
        await session.press("plus", "plus", "number_sign", *"1,101", "enter")
        assert await rest(session, screen) == 1101
        await session.until(lambda: screen.view.window == screen.view.window.whole(), "all of the run")
        await session.press("number_sign", "escape")
        assert screen.view.crosshair == 1101
        await session.press("x", "x")
        await session.until(lambda: screen.curves and screen.curves.axis == "time" and screen.curves.is_answered)
        await session.press("number_sign", *"600", "enter")
        assert abs(await rest(session, screen) - 600) <= 12, "within a column"
