"""The crosshair of the charts: it is always on a logged step, and every one of them can be reached."""

from __future__ import annotations

from typing import Any

from grpo_tui.views.charts.screen import ChartsScreen
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import LOGS, jsonl, rollout_rows, train_rows

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


def falling(client: FakeClient) -> None:
    """A run whose reward falls a little at step 61, and to zero at step 81, five steps after a new learning rate."""
    learning_box(client, steps=100)
    rows = train_rows(100)
    for row in rows:
        step = row["step"]
        row["reward"] = (1.84 if step < 61 else 1.5 if step < 81 else 0.0) + 0.01 * (-1) ** step
        row["grad_norm"] = 9.0 if step == 81 else 0.2
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)
    changes = {"optimizer.learning_rate": [0.0001, 0.002]}
    resumed = {"step": 76, "time": rows[75]["time"], "event": "resumed", "changes": changes}
    client.files[f"{LOGS}/events.jsonl"] = jsonl([resumed])
    samples = [
        {**row, "step": step, "index": row["group"], "prompt": f"what is {row['group']} + 5?", "reward": reward}
        for step, reward in ((70, 2.0), (81, 0.0))
        for row in rollout_rows(step)
    ]
    samples[-1]["reward"] = 2.0  # group 1 has one that is right
    client.files[f"{LOGS}/rollouts.jsonl"] = jsonl(samples)


async def test_a_narrow_terminal_has_the_events_and_the_changes(start: Start) -> None:
    async with start(falling, wait="100/200", size=(80, 24)) as session:
        await charts(session)
        await session.press("number_sign", *"81", "enter")
        text = await session.until_text("learning_rate 1e-4", "→ 2e-3  5 steps before", "reward -0.010 (-1.510)")
        assert " was " not in text
        assert "grad_norm 9.000 (×45)" in text


async def test_the_largest_drop_is_gone_to_and_explained(start: Start) -> None:
    async with start(falling, wait="100/200", size=(140, 40)) as session:
        screen = await charts(session)
        await session.press("d")
        await session.until_text(
            "reward: drop 1 of 2, at step 81: 1.500 → -0.010 (medians)", "reward -0.010 was 1.500 (-1.510)"
        )
        assert await rest(session, screen) == 81
        await session.until_text("grad_norm 9.000 was 0.200 (×45)", "learning_rate", "5 steps before")
        await session.until_text("what is 0 + 5? 2.000 → 0 since step 70 · what is 1 + 5? 2.000 → 0.500")
        await session.press("d")
        await session.until_text("reward: drop 2 of 2, at step 61: 1.840 → 1.490")
        assert await rest(session, screen) == 61
        await session.press("d")
        await session.until_text("drop 1 of 2")
        await session.press("u")
        await session.until_text("reward has no rise beyond its noise in this range")


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
