"""Events on the axis of the charts: their signs, their rows, by key and by mouse, and the gaps of a time axis."""

from __future__ import annotations

import re
from typing import Any

from grpo_tui.kit.chart import CurveChart
from grpo_tui.views.charts.screen import ChartsScreen
from tests.tui.conftest import Session, Start
from tests.tui.fake import FakeClient, learning_box
from tests.tui.fake_rows import LOGS, at, jsonl, train_rows

STOPPED_S = 3600.0


def eventful(client: FakeClient) -> None:
    """:func:`learning_box`, stopped for an hour after step 40 and resumed with another learning rate; crashed at 60."""
    learning_box(client)
    rows = train_rows(87, nan_at=30)
    for row in rows[:40]:
        row["time"] = at(2 + 3.1 * (87 - row["step"]) + STOPPED_S)
    client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)
    ended = 2 + 3.1 * 47
    changes = {"optimizer.learning_rate": [1e-4, 2e-4]}
    client.files[f"{LOGS}/events.jsonl"] = jsonl(
        [
            {"step": 0, "time": at(ended + STOPPED_S + 124), "event": "launched"},
            {"step": 40, "time": at(ended + STOPPED_S), "event": "stop_asked", "by": "ann"},
            {"step": 40, "time": at(ended + STOPPED_S - 1), "event": "stopped"},
            {"step": 40, "time": at(ended), "event": "resumed", "changes": changes},
            {"step": 40, "time": at(ended - 0.5), "event": "training"},
            {"step": 60, "time": at(2 + 3.1 * 27 - 1), "event": "crashed", "error": {"summary": "out of memory"}},
        ]
    )


def signs(session: Session, slot: int = 0) -> str:
    """The signs of a chart, as they are drawn."""
    chart = session.app.views.charts.query_one(f"#slot-{slot}", CurveChart)
    places = sorted((column, row) for row, signs in chart._signs.items() for column in signs)
    return "".join(chart.render_line(row).text[chart._margin + column] for column, row in places)


async def shown(session: Session) -> ChartsScreen:
    await session.press("2")
    await session.until(lambda: "✖" in signs(session) and "◆" in signs(session), "signs")
    return session.app.views.charts


async def test_every_chart_has_the_events(start: Start) -> None:
    async with start(eventful, wait="87/200", paints=True) as session:
        screen = await shown(session)
        loss = screen.drawn.index("loss")
        await session.until(lambda: signs(session) == "◆◆Δ✖", "the signs")
        await session.until(lambda: signs(session, loss) == "◆◆×Δ✖", "the signs, and NaN")
        await session.until_text("Δ changed config")


async def test_evaluations_are_at_their_accuracy(start: Start) -> None:
    def graded(client: FakeClient) -> None:
        eventful(client)
        rows = [row | {"accuracy": 0.3 + row["step"] / 1000} for row in train_rows(87)]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(graded, wait="87/200", paints=True) as session:
        await session.press("2")
        screen = session.app.views.charts
        await session.until(lambda: "accuracy" in screen.drawn, "the chart")
        chart = screen.query_one(f"#slot-{screen.drawn.index('accuracy')}", CurveChart)
        await session.until(lambda: chart._view is not None and "✖" in str(chart._signs), "the signs")
        found = {sign.events[0].accuracy: row for row, signs in chart._signs.items() for sign in signs.values()}
        heights = sorted((accuracy, row) for accuracy, row in found.items() if accuracy is not None)
        (_, low), (_, high) = heights
        assert low > high, "the better one is higher"
        assert found[None] > low, "the others stay below the curve"


async def test_an_event_is_gone_to(start: Start) -> None:
    async with start(eventful, wait="87/200", paints=True) as session:
        screen = await shown(session)
        await session.press("n")
        await session.until_text("step 60", "✖ ", "crashed: out of memory", "enter opens it")
        await session.press("n")
        await session.until_text("no later event in this range")
        await session.press("N")
        await session.until_text("step 40", "optimizer.learning_rate 1e-4 → 2e-4")
        assert screen.view.crosshair == 40
        await session.press("left", "right")
        await session.until(lambda: not screen.chosen and screen.view.crosshair == 40)
        await session.until_text("step 40", "optimizer.learning_rate 1e-4 → 2e-4")
        assert not re.search(r"enter opens it\b", session.text())


async def test_enter_on_an_event_shows_its_row(start: Start) -> None:
    async with start(eventful, wait="87/200", paints=True) as session:
        screen = await shown(session)
        await session.press("n", "enter")
        await session.until(lambda: session.app.views.name == "logs")
        await session.until_text("events.jsonl", "out of memory")
        window = session.app.views.logs.window
        await session.until(lambda: window and window.current and '"crashed"' in window.current.text, "the row")
        await session.until_text("paused")
        assert window is not None
        assert window.new_lines == 0, "none was added since it was opened"
        session.client.append(f"{LOGS}/events.jsonl", jsonl([{"step": 60, "time": at(1), "event": "resumed"}]))
        await session.until_text("paused, 1 new line")
        await session.press("escape")
        await session.until(lambda: session.app.views.name == "charts")
        assert screen.view.crosshair == 60


async def test_enter_on_an_evaluation_opens_it(start: Start) -> None:
    async with start(eventful, wait="87/200", paints=True) as session:
        await shown(session)
        await session.press("n", "N", "N")
        await session.until_text("evaluated on addition: .710 ±.030")
        await session.press("enter")
        await session.until(lambda: session.app.views.name == "rollouts")
        reader = session.app.views.rollouts.reader
        assert reader is not None
        assert reader.rollouts.evaluation.endswith("_addition")
        await session.press("2", "left", "enter")
        await session.until(lambda: session.app.views.rollouts.reader is not reader, "the completions of the training")


async def test_a_click_on_a_sign_shows_its_row(start: Start) -> None:
    async with start(eventful, wait="87/200", paints=True) as session:
        screen = await shown(session)
        chart = screen.query_one("#slot-0", CurveChart)
        ((row, columns),) = chart._signs.items()
        column = next(column for column, sign in columns.items() if sign.text == "✖")
        inner = chart.content_region.offset - chart.region.offset
        await session.pilot.click("#slot-0", offset=(inner.x + chart._margin + column, inner.y + row))
        await session.until_text("crashed: out of memory", "enter opens it")
        assert screen.view.crosshair == 60


async def test_a_stop_is_a_gap_of_the_time_axis(start: Start) -> None:
    async with start(eventful, wait="87/200", paints=True) as session:
        screen = await shown(session)
        await session.press("x")
        await session.until_text("x: time", "stopped 59 m")
        await session.until(lambda: signs(session)[-1:] == "✖", "the crash")
        stop = next(one for one in screen.events.placed if one.event.sign == "S")
        assert [one.event.step for one in screen.events.beside(stop.x, -1)] == [20], (
            "evaluations have the time of a step"
        )
        for key, text in (("n", "crashed"), ("N", "resumed from"), ("N", "stopped, stop requested by ann")):
            await session.press(key)
            await session.until(lambda: screen.step.shown and screen.step.shown["x"] == screen.view.crosshair, key)
            await session.until_text(text)


async def test_tokens_have_the_events(start: Start) -> None:
    def script(client: FakeClient) -> None:
        eventful(client)
        rows: list[dict[str, Any]] = [{**row, "num_tokens": 1000 * row["step"] ** 2} for row in train_rows(87)]
        client.files[f"{LOGS}/train_log.jsonl"] = jsonl(rows)

    async with start(script, wait="87/200", paints=True) as session:
        screen = await shown(session)
        await session.press("x")
        await session.until_text("x: tokens")
        column = 87**2 * 1000 / 60
        await session.until(
            lambda: [abs(x - 1000 * event.step**2) <= column for x, event in screen.events.placed] == [True] * 5,
            "each in its column",
        )


async def test_a_low_chart_keeps_its_events(start: Start) -> None:
    async with start(eventful, size=(80, 24), wait="87/200", paints=True) as session:
        await shown(session)
        await session.until(lambda: "✖" in signs(session), "the crash")
